// Runs test classes in JUnit's launcher inside a sandbox and reports each test; a program there.
//
// Standard input: a JSON object of texts: `key`, `seed`, and `classes`, file -> name of its class. Results go to the
// standard output that the process was started with, one line each, signed with the key; System.out goes nowhere. JUnit
// comes first in the class path, and neither engines nor listeners of the code under test are registered.

import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import org.junit.jupiter.engine.JupiterTestEngine;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.engine.discovery.DiscoverySelectors;
import org.junit.platform.launcher.Launcher;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestIdentifier;
import org.junit.platform.launcher.TestPlan;
import org.junit.platform.launcher.core.LauncherConfig;
import org.junit.platform.launcher.core.LauncherDiscoveryRequestBuilder;
import org.junit.platform.launcher.core.LauncherFactory;
import org.junit.vintage.engine.VintageTestEngine;

final class Inside {
    private static final int LONGEST = 2000;

    public static void main(String[] arguments) throws Exception {
        List<String> given = texts(new String(System.in.readAllBytes(), StandardCharsets.UTF_8));
        OutputStream channel = new FileOutputStream(FileDescriptor.out);
        System.setOut(new PrintStream(OutputStream.nullOutputStream()));
        System.setErr(new PrintStream(OutputStream.nullOutputStream()));
        Map<String, String> values = new HashMap<>();
        List<String[]> classes = new ArrayList<>();
        int start = given.indexOf("classes");
        for (int at = 0; at < start; at += 2) values.put(given.get(at), given.get(at + 1));
        for (int at = start + 1; at < given.size(); at += 2) classes.add(new String[] {given.get(at), given.get(at + 1)});
        String seed = values.get("seed");
        if (!seed.isEmpty()) classes.sort(Comparator.comparing(one -> hash(seed + " " + one[0])));
        Reports reports = new Reports(values.get("key"), channel);
        LauncherConfig config = LauncherConfig.builder()
            .enableTestEngineAutoRegistration(false)
            .enableTestExecutionListenerAutoRegistration(false)
            .enableLauncherDiscoveryListenerAutoRegistration(false)
            .enableLauncherSessionListenerAutoRegistration(false)
            .enablePostDiscoveryFilterAutoRegistration(false)
            .addTestEngines(new JupiterTestEngine(), new VintageTestEngine())
            .build();
        for (String[] one : classes) {
            try {
                Class<?> tests = Class.forName(one[1], false, Inside.class.getClassLoader());
                Launcher launcher = LauncherFactory.create(config);
                launcher.execute(
                    LauncherDiscoveryRequestBuilder.request().selectors(DiscoverySelectors.selectClass(tests)).build(),
                    new Listener(reports, one[0]));
            } catch (Throwable error) { // a class may throw anything when it is loaded
                reports.uncollected(one[0], error);
            }
        }
        reports.send("\"end\": 0");
        Runtime.getRuntime().halt(0);
    }

    private static List<String> texts(String json) { // keys and values, which are texts without escapes other than \" and \\
        List<String> found = new ArrayList<>();
        Matcher matcher = Pattern.compile("\"((?:\\\\.|[^\"\\\\])*)\"").matcher(json);
        while (matcher.find()) found.add(matcher.group(1).replaceAll("\\\\(.)", "$1"));
        return found;
    }

    private static String hash(String text) {
        try {
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(text.getBytes(StandardCharsets.UTF_8));
            return HexFormat.of().formatHex(digest);
        } catch (java.security.NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }

    private static final class Reports {
        private final Mac signer = mac();
        private final OutputStream channel;
        private int number = 0;

        Reports(String key, OutputStream channel) throws Exception {
            this.channel = channel;
            signer.init(new SecretKeySpec(key.getBytes(StandardCharsets.UTF_8), "HmacSHA256"));
        }

        private static Mac mac() {
            try {
                return Mac.getInstance("HmacSHA256");
            } catch (java.security.NoSuchAlgorithmException error) {
                throw new IllegalStateException(error);
            }
        }

        synchronized void send(String fields) throws Exception {
            String text = "{" + fields + ", \"number\": " + number++ + "}";
            String signature = HexFormat.of().formatHex(signer.doFinal(text.getBytes(StandardCharsets.UTF_8)));
            channel.write((signature + " " + text + "\n").getBytes(StandardCharsets.UTF_8));
            channel.flush();
        }

        void test(String name, String outcome, String said) {
            try {
                send("\"test\": " + quoted(name) + ", \"when\": \"call\", \"outcome\": \"" + outcome + "\", \"text\": " + quoted(said));
            } catch (Exception error) {
                Runtime.getRuntime().halt(3);
            }
        }

        void uncollected(String file, Throwable error) {
            try {
                send("\"uncollected\": " + quoted(file) + ", \"text\": " + quoted(String.valueOf(error)));
            } catch (Exception failure) {
                Runtime.getRuntime().halt(3);
            }
        }

        private static String quoted(String text) {
            StringBuilder made = new StringBuilder("\"");
            for (char sign : text.substring(0, Math.min(LONGEST, text.length())).toCharArray()) {
                if (sign == '"' || sign == '\\') made.append('\\').append(sign);
                else if (sign < 32 || sign > 126) made.append(String.format("\\u%04x", (int) sign));
                else made.append(sign);
            }
            return made.append('"').toString();
        }
    }

    private static final class Listener implements TestExecutionListener {
        private final Reports reports;
        private final String file;
        private final Map<String, Integer> times = new HashMap<>();
        private TestPlan plan;

        Listener(Reports reports, String file) {
            this.reports = reports;
            this.file = file;
        }

        @Override
        public void testPlanExecutionStarted(TestPlan plan) {
            this.plan = plan;
        }

        @Override
        public void executionSkipped(TestIdentifier one, String reason) {
            if (one.isTest()) report(one, "skipped", "");
            for (TestIdentifier below : plan.getDescendants(one)) if (below.isTest()) report(below, "skipped", "");
        }

        @Override
        public void executionFinished(TestIdentifier one, TestExecutionResult result) {
            boolean failed = result.getStatus() == TestExecutionResult.Status.FAILED;
            String said = failed ? result.getThrowable().map(String::valueOf).orElse("") : "";
            if (one.isTest()) {
                boolean good = result.getStatus() == TestExecutionResult.Status.SUCCESSFUL;
                report(one, failed ? "failed" : good ? "passed" : "skipped", said);
            } else if (failed) {
                reports.uncollected(file, result.getThrowable().orElse(null));
            }
        }

        private void report(TestIdentifier one, String outcome, String said) {
            String name = file + "::" + one.getLegacyReportingName();
            int count = times.merge(name, 1, Integer::sum);
            reports.test(count > 1 ? name + " #" + count : name, outcome, said);
        }
    }
}
