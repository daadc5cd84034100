// Runs test files in node inside a sandbox and reports each test. It is a file there: processes that node:test starts
// inherit node's options, and with `node -e` each of them would run this program once more and wait for its input.
//
// Standard input: a JSON object with `key`, `files` (runner -> paths), `seed`, and `typed`, whether tsx loads files.
// Results go to descriptor 3, one line each, signed with the key. The functions that sign are taken before any file of
// the repository is loaded. All is inside a function, as names at the top of a program of `node -e` are every module's.
'use strict';
(() => {
const fs = require('fs');
const path = require('path');
const { createHmac, createHash, Hmac } = require('crypto');
const { createRequire } = require('module');
const { pathToFileURL } = require('url');
const given = JSON.parse(fs.readFileSync(0, 'utf8'));
const apply = Reflect.apply, { stringify } = JSON, { update, digest } = Hmac.prototype, write = fs.writeSync;
const exit = process.exit.bind(process), key = given.key, modules = '/node_modules/';
let number = 0;

function send(event) {
  event.__proto__ = null;
  event.number = number++;
  const text = stringify(event), signer = createHmac('sha256', key);
  apply(update, signer, [text]);
  const line = Buffer.from(`${apply(digest, signer, ['hex'])} ${text}\n`);
  for (let at = 0; at < line.length;) at += write(3, line, at);
}

const names = new Map();
function named(file, name) {
  const full = `${path.relative(process.cwd(), file)}::${name}`, times = (names.get(full) || 0) + 1;
  names.set(full, times);
  return times > 1 ? `${full} #${times}` : full;
}
const report = (test, outcome, text, slow) => // slow: a time limit of its own has ended it
  send({ test, when: 'call', outcome, text: String(text || '').slice(0, 2000), slow: Boolean(slow) });
const uncollected = (file, error) =>
  send({ uncollected: path.relative(process.cwd(), file), text: String((error && error.stack) || error).slice(0, 2000) });
const ordered = (list, name) => !given.seed ? list : [...list].sort((a, b) => {
  const [x, y] = [a, b].map((one) => createHash('sha256').update(`${given.seed} ${name(one)}`).digest('hex'));
  return x < y ? -1 : x > y ? 1 : 0;
});

async function load(file) {
  try {
    if (/\.m[jt]s$/.test(file)) await import(pathToFileURL(file).href);
    else {
      try { require(file); } catch (error) {
        if (error.code !== 'ERR_REQUIRE_ESM') throw error;
        await import(pathToFileURL(file).href);
      }
    }
  } catch (error) { uncollected(file, error); }
}

async function tape(files) {
  const framework = require(`${modules}tape`), tests = new Map();
  const stream = framework.createStream({ objectMode: true });
  const ended = new Promise((resolve) => stream.on('end', resolve));
  stream.on('data', (row) => {
    if (row.type === 'test') {
      const parent = tests.get(row.parent);
      const [file, name] = parent ? [parent.file, `${parent.name} > ${row.name}`] : [current(row.name), row.name];
      tests.set(row.id, { name, file, flaws: [], skipped: row.skip });
    } else if (row.type === 'assert' && tests.has(row.test) && !row.ok && !row.todo && !row.skip) {
      const { operator, name, expected, actual, error } = row;
      const shown = (value) => { try { return stringify(value); } catch { return String(value); } };
      tests.get(row.test).flaws.push(`${name}\n${operator}: expected ${shown(expected)}, got ${shown(actual)}\n${(error && error.message) || ''}`);
    } else if (row.type === 'end' && tests.has(row.test)) {
      const one = tests.get(row.test);
      report(named(one.file, one.name), one.skipped ? 'skipped' : one.flaws.length ? 'failed' : 'passed', one.flaws.join('\n'));
    }
  });
  const files_of = [];
  const harness = framework.getHarness();
  for (const file of ordered(files, String)) {
    const before = harness._tests.length;
    await load(file);
    for (const one of harness._tests.slice(before)) files_of.push([one.name, file]);
  }
  function current(name) {
    const at = files_of.findIndex(([known]) => known === name);
    return at < 0 ? files[0] : files_of.splice(at, 1)[0][1];
  }
  if (!harness._tests.length) return;
  await ended;
}

async function mocha(files) {
  const Mocha = require(`${modules}mocha`);
  const framework = new Mocha({ timeout: 10000, reporter: function () {} });
  const from = new Map();
  for (const file of files) {
    framework.suite.emit('pre-require', globalThis, file, framework);
    await load(file);
  }
  (function shuffle(suite) {
    for (const one of suite.tests) from.set(one, named(one.file || files[0], one.fullTitle()));
    suite.tests = ordered(suite.tests, (one) => one.title);
    suite.suites = ordered(suite.suites, (one) => one.title);
    suite.suites.forEach(shuffle);
  })(framework.suite);
  await new Promise((resolve) => {
    const runner = framework.run(resolve);
    runner.on('pass', (one) => report(from.get(one), 'passed'));
    runner.on('pending', (one) => report(from.get(one), 'skipped'));
    runner.on('fail', (one, error) =>
      from.has(one) ? report(from.get(one), 'failed', error.message, error.code === 'ERR_MOCHA_TIMEOUT')
        : uncollected(one.file || files[0], error));
  });
}

async function node(files) {
  const { run } = require('node:test');
  if (given.typed) process.env.NODE_OPTIONS = `--import=${pathToFileURL(`${modules}tsx/dist/loader.mjs`).href}`;
  for await (const { type, data } of run({ files: ordered(files, String), concurrency: 1 })) {
    if ((type === 'test:pass' || type === 'test:fail') && data.details.type !== 'suite' && data.file) {
      if (data.nesting === 0 && files.includes(data.name)) continue;
      const { error: whole } = data.details, error = whole && (whole.cause || whole);
      const outcome = data.skip || data.todo ? 'skipped' : type === 'test:pass' ? 'passed' : 'failed';
      report(named(data.file, data.name), outcome, error && error.message, whole && whole.failureType === 'testTimeoutFailure');
    }
  }
}

async function vitest(files) {
  const { startVitest } = await import(`${modules}vitest/dist/node.js`);
  fs.mkdirSync('node_modules', { recursive: true }); // where Vite puts a setting that it has bundled
  const seed = parseInt(given.seed || '0', 16);
  const sequence = given.seed ? { shuffle: { files: true, tests: true }, seed } : { shuffle: false };
  const framework = await startVitest('test', files, {
    watch: false, pool: 'forks', fileParallelism: false, isolate: true, reporters: [{}], update: false, sequence,
    coverage: { enabled: false }, typecheck: { enabled: false }, include: files, exclude: [], passWithNoTests: true,
  }, { cacheDir: '/tmp/vite', logLevel: 'silent', ...sources() });
  const message = (task) => ((task.result && task.result.errors) || []).map((one) => one.message).join('\n');
  const walk = (file, task, names) => {
    if (task.tasks) { task.tasks.forEach((one) => walk(file, one, [...names, one.name])); return; }
    const state = task.result && task.result.state;
    const outcome = state === 'pass' ? 'passed' : state === 'fail' ? 'failed' : 'skipped';
    report(named(file, names.join(' > ')), outcome, message(task), /^(Test|Hook) timed out in /m.test(message(task)));
  };
  for (const one of framework.state.getFiles()) {
    if (!one.tasks.length && message(one)) uncollected(one.filepath, message(one));
    else walk(one.filepath, one, []);
  }
  await framework.close();
}

function sources() { // conditions under which package.json exports the sources, as `"@zod/source": "./src/index.ts"`
  let project = {};
  try { project = JSON.parse(fs.readFileSync('package.json', 'utf8')); } catch {}
  const found = new Set();
  (function look(one) {
    for (const [name, target] of Object.entries(one && typeof one === 'object' ? one : {})) {
      if (/(?<!\.d)\.[cm]?tsx?$/.test(target) && !name.startsWith('.') && name !== 'types') found.add(name);
      look(target);
    }
  })(project.exports);
  if (!found.size) return {};
  const conditions = [...found, 'module', 'node', 'development|production'];
  return { resolve: { conditions }, ssr: { resolve: { conditions } } };
}

(async () => {
  if (given.typed && ['tape', 'mocha'].some((name) => given.files[name])) {
    const here = createRequire(`${modules}_.js`);
    for (const kind of ['cjs', 'esm']) here(`tsx/${kind}/api`).register();
  }
  const runners = { tape, mocha, node, vitest };
  for (const [name, files] of Object.entries(given.files)) {
    const paths = files.map((file) => path.resolve(file));
    try { await runners[name](paths); } catch (error) { paths.forEach((file) => uncollected(file, error)); }
  }
  send({ end: 0 });
  exit(0);
})();
})();
