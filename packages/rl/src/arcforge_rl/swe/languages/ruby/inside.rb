# Runs test files in Ruby inside a sandbox and reports each test; a program there.
#
# Standard input: a JSON object with `key`, `files` (framework -> paths) and `seed`. Results go to descriptor 3, one line
# each, signed with the key. The functions that sign are taken before any file of the repository is loaded.
require 'json'
require 'openssl'
require 'digest'

module Bundler # packages are those of the layers
  def self.setup(*) = nil
  def self.require(*) = nil
end
$LOADED_FEATURES << 'bundler/setup.rb' << 'bundler.rb' << 'simplecov.rb'

module SimpleCov
  def self.method_missing(*) = nil
  def self.respond_to_missing?(*) = true
end

lambda do
  given = JSON.parse($stdin.read)
  key, seed, channel = given['key'], given['seed'], IO.for_fd(3, 'w')
  channel.sync = true
  sign = OpenSSL::HMAC.method(:hexdigest)
  generate = JSON.method(:generate)
  write = channel.method(:syswrite)
  leave = Process.method(:exit!)
  hash = Digest::SHA256.method(:hexdigest)
  number, times = 0, Hash.new(0)
  here = Dir.pwd

  send = lambda do |event|
    text = generate.call(event.merge(number: number))
    number += 1
    line = "#{sign.call('sha256', key, text)} #{text}\n"
    line = line.byteslice(write.call(line)..) until line.empty?
  end
  relative = ->(file) { File.expand_path(file, here).delete_prefix("#{here}/") }
  report = lambda do |file, name, outcome, text|
    full = "#{relative.call(file)}::#{name}"
    count = times[full] += 1
    full = "#{full} ##{count}" if count > 1
    send.call({ test: full, when: 'call', outcome: outcome, text: text.to_s.scrub[0, 2000] })
  end
  uncollected = lambda do |file, error|
    send.call({ uncollected: relative.call(file), text: "#{error.class}: #{error.message}".scrub[0, 2000] })
  end
  ordered = ->(list, &name) { seed.empty? ? list.to_a : list.sort_by { |one| hash.call("#{seed} #{name.call(one)}") } }
  load_all = lambda do |files, &loaded|
    ordered.call(files, &:itself).each do |file|
      load File.expand_path(file)
      loaded&.call(file)
    rescue Exception => e # a file may raise anything, or exit
      uncollected.call(file, e)
    end
  end

  minitest = lambda do |files|
    require 'minitest'
    Minitest.class_variable_set(:@@installed_at_exit, true)
    $LOADED_FEATURES << 'minitest/autorun.rb'
    require 'minitest/spec'
    require 'minitest/mock'
    Minitest.seed = seed.empty? ? 1 : seed.to_i(16)
    from = {}
    load_all.call(files) { |file| Minitest::Runnable.runnables.each { |one| from[one] ||= file } }
    paths = files.to_h { |file| [File.expand_path(file), file] }
    Minitest::Runnable.runnables.filter_map { |one| [one, one.runnable_methods] if from[one] }.then do |groups|
      pairs = groups.flat_map { |one, names| names.sort.map { |name| [one, name] } }
      ordered.call(pairs) { |one, name| "#{one}##{name}" }.each do |one, name|
        place = one.instance_method(name).source_location
        result = Minitest.run_one_method(one, name)
        outcome = result.skipped? ? 'skipped' : result.passed? ? 'passed' : 'failed'
        text = result.failures.map { |flaw| flaw.respond_to?(:error) ? flaw.error.message : flaw.message }.join("\n")
        report.call(paths[place&.first] || from[one], "#{one}##{name}", outcome, outcome == 'failed' ? text : '')
      end
    end
  end

  unit = lambda do |files|
    require 'test/unit'
    require 'test/unit/testresult'
    Test::Unit::AutoRunner.need_auto_run = false
    from = {}
    load_all.call(files) { |file| ObjectSpace.each_object(Test::Unit::TestCase.singleton_class) { |one| from[one] ||= file } }
    from.delete(Test::Unit::TestCase)
    ordered.call(from.keys.select(&:name).sort_by(&:name), &:name).each do |one|
      tests = one.suite.tests
      next if tests.empty?

      one.startup
      ordered.call(tests, &:name).each do |test|
        result = Test::Unit::TestResult.new
        flaws = []
        result.add_listener(Test::Unit::TestResult::FAULT) { |fault| flaws << fault.message.to_s }
        test.run(result) { |*| nil }
        skipped = result.omission_count.positive? || result.pending_count.positive?
        report.call(from[one], test.name, result.passed? ? (skipped ? 'skipped' : 'passed') : 'failed', flaws.join("\n"))
      end
      one.shutdown
    end
  end

  rspec = lambda do |files|
    require 'rspec/core'
    require 'rspec/expectations'
    require 'rspec/mocks'
    RSpec::Core::Runner.disable_autorun!
    nothing = File.open(File::NULL, 'w')
    RSpec.configuration.output_stream = RSpec.configuration.error_stream = nothing
    RSpec::Core::ConfigurationOptions.new([]).configure(RSpec.configuration)
    RSpec.configuration.seed = seed.to_i(16) % 65_536 unless seed.empty?
    listener = Object.new
    { passed: 'passed', failed: 'failed', pending: 'skipped' }.each do |event, outcome|
      listener.define_singleton_method(:"example_#{event}") do |notice|
        one = notice.example
        flaw = outcome == 'failed' ? one.execution_result.exception&.message : ''
        report.call(one.metadata[:rerun_file_path] || one.file_path, one.full_description, outcome, flaw)
      end
    end
    listener.define_singleton_method(:message) { |*| nil }
    RSpec.configuration.reporter.register_listener(listener, :example_passed, :example_failed, :example_pending)
    load_all.call(files)
    RSpec.configuration.reporter.report(RSpec.world.example_count) do |reporter|
      RSpec.configuration.with_suite_hooks { RSpec.world.ordered_example_groups.each { |group| group.run(reporter) } }
    end
  end

  %w[. lib test spec].each { |folder| $LOAD_PATH.unshift(File.expand_path(folder)) }
  { 'minitest' => minitest, 'unit' => unit, 'rspec' => rspec }.each do |name, run|
    files = given['files'][name] || next
    run.call(files)
  rescue Exception => e # a framework that the code has broken
    files.each { |file| uncollected.call(file, e) }
  end
  send.call({ end: 0 })
  leave.call(0)
end.call
