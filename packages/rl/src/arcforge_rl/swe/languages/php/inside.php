<?php
// Runs PHPUnit inside a sandbox and reports each test; a program there.
//
// Standard input: a JSON object with `key`, `files` and `seed`. Results go to descriptor 3, one line each, signed with the
// key. PHPUnit is loaded before any file of the repository, and no program can replace a function of PHP's own.

namespace ArcforgeRun;

use PHPUnit\Framework\{AssertionFailedError, Test, TestCase, TestListener, TestResult, TestSuite, Warning};

require_once '/usr/share/php/PHPUnit/Autoload.php'; // before the class, which implements an interface of PHPUnit

final class Reporter implements TestListener
{
    private $number = 0;
    private $times = [];
    private $state;
    private $text;
    public $file = '';

    public function __construct(private string $key, private $channel)
    {
    }

    public function send(array $event): void
    {
        $text = \json_encode($event + ['number' => $this->number++], \JSON_INVALID_UTF8_SUBSTITUTE);
        \fwrite($this->channel, \hash_hmac('sha256', $text, $this->key) . " $text\n");
    }

    public function uncollected(string $file, \Throwable|string $error): void
    {
        $text = \is_string($error) ? $error : \get_class($error) . ': ' . $error->getMessage();
        $this->send(['uncollected' => $file, 'text' => \mb_substr($text, 0, 2000)]);
    }

    private function flaw(string $state, \Throwable $error): void
    {
        if ($this->state !== 'failed') {
            [$this->state, $this->text] = [$state, $state === 'failed' ? $error->getMessage() : ''];
        }
    }

    public function startTest(Test $test): void
    {
        [$this->state, $this->text] = ['passed', ''];
    }

    public function endTest(Test $test, float $time): void
    {
        $name = $this->file . '::' . ($test instanceof TestCase ? $test->getName() : \get_class($test));
        $times = $this->times[$name] = ($this->times[$name] ?? 0) + 1;
        $test = $times > 1 ? "$name #$times" : $name;
        $this->send(['test' => $test, 'when' => 'call', 'outcome' => $this->state, 'text' => \mb_substr($this->text, 0, 2000)]);
    }

    public function addError(Test $test, \Throwable $t, float $time): void { $this->flaw('failed', $t); }
    public function addWarning(Test $test, Warning $e, float $time): void { $this->flaw('failed', $e); }
    public function addFailure(Test $test, AssertionFailedError $e, float $time): void { $this->flaw('failed', $e); }
    public function addIncompleteTest(Test $test, \Throwable $t, float $time): void { $this->flaw('skipped', $t); }
    public function addRiskyTest(Test $test, \Throwable $t, float $time): void { }
    public function addSkippedTest(Test $test, \Throwable $t, float $time): void { $this->flaw('skipped', $t); }
    public function startTestSuite(TestSuite $suite): void { }
    public function endTestSuite(TestSuite $suite): void { }
}

function load_framework(string $folder): void
{
    foreach (['PHPUnit/Framework', 'PHPUnit/Util', 'SebastianBergmann/Comparator', 'SebastianBergmann/Exporter'] as $part) {
        if (!\is_dir("$folder/$part")) {
            continue;
        }
        foreach (new \RecursiveIteratorIterator(new \RecursiveDirectoryIterator("$folder/$part")) as $file) {
            if ($file->getExtension() === 'php' && \preg_match('/^[A-Z]/', $file->getFilename())) {
                try {
                    require_once $file->getPathname();
                } catch (\Throwable) { // a class of an extension that is not there
                }
            }
        }
    }
}

function autoload(array $project): void
{
    $places = [];
    foreach (['autoload', 'autoload-dev'] as $part) {
        foreach (['psr-4', 'psr-0'] as $kind) {
            foreach ($project[$part][$kind] ?? [] as $prefix => $folders) {
                foreach ((array) $folders as $folder) {
                    $places[] = [$kind, (string) $prefix, \rtrim((string) $folder, '/')];
                }
            }
        }
    }
    \spl_autoload_register(static function (string $class) use ($places): void {
        foreach ($places as [$kind, $prefix, $folder]) {
            if ($prefix === '' || \str_starts_with($class, $prefix)) {
                $rest = $kind === 'psr-4' ? \substr($class, \strlen($prefix)) : \str_replace('_', '\\', $class);
                $file = \getcwd() . ($folder === '' || $folder === '.' ? '' : "/$folder") . '/' . \str_replace('\\', '/', $rest) . '.php';
                if (\is_file($file)) {
                    require_once $file;
                    return;
                }
            }
        }
    });
    foreach (['autoload', 'autoload-dev'] as $part) {
        foreach ($project[$part]['classmap'] ?? [] as $place) {
            foreach (\is_dir($place) ? (\glob("$place/{,*/,*/*/}*.php", \GLOB_BRACE) ?: []) : [$place] as $file) {
                if (!\preg_match('/tests?\//i', $file)) {
                    require_once \getcwd() . "/$file";
                }
            }
        }
        foreach ($project[$part]['files'] ?? [] as $file) {
            require_once \getcwd() . "/$file";
        }
    }
}

function main(): void
{
    $given = \json_decode(\stream_get_contents(\STDIN), true);
    $reporter = new Reporter($given['key'], \fopen('php://fd/3', 'w'));
    load_framework('/usr/share/php');
    \error_reporting(\E_ALL);
    try {
        autoload(\json_decode((string) @\file_get_contents('composer.json'), true) ?: []);
        foreach ($given['bootstrap'] as $file) {
            require_once \getcwd() . "/$file";
        }
    } catch (\Throwable $error) { // tests that need it say so
        $reporter->uncollected('bootstrap', $error);
    }
    $files = $given['files'];
    if ($given['seed'] !== '') {
        \usort($files, static fn ($a, $b) => \strcmp(\hash('sha256', $given['seed'] . $a), \hash('sha256', $given['seed'] . $b)));
    }
    foreach ($files as $file) {
        $reporter->file = $file;
        try {
            $suite = new TestSuite();
            $suite->addTestFile(\getcwd() . "/$file");
            $result = new TestResult();
            $result->addListener($reporter);
            $suite->run($result);
        } catch (\Throwable $error) {
            $reporter->uncollected($file, $error);
        }
    }
    $reporter->send(['end' => 0]);
}

main();
