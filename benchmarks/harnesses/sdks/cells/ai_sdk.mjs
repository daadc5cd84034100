// Vercel's AI SDK, through its providers of chat completions, of responses and of Anthropic's messages.
import assert from "node:assert";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.cwd()}/ai_sdk/`);
const load = async (name) => import(pathToFileURL(require.resolve(name)));
const { generateText, streamText, tool, stepCountIs, Output } = await load("ai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const { createOpenAI } = await load("@ai-sdk/openai");
const { createAnthropic } = await load("@ai-sdk/anthropic");
const { z } = await load("zod");

const [cell, url] = process.argv.slice(2);
const prompt = "What is the weather in Paris?";
const text = "It is 21 degrees in Paris.";
const wanted = { city: "Paris", degrees: 21 };
const options = { baseURL: `${url}/v1`, apiKey: "none" };
const models = [
  createOpenAICompatible({ name: "arcforge", supportsStructuredOutputs: true, ...options })("small"),
  createOpenAI(options).responses("small"),
  createOpenAI(options).chat("small"),
  createAnthropic(options)("small"),
];
const schema = z.object({ city: z.string(), degrees: z.number().int() });
const asked = () => {
  const called = [];
  const get_weather = tool({
    description: "Get the weather of a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      called.push(city);
      return "sunny, 21 degrees";
    },
  });
  return { called, fields: { prompt, maxRetries: 0, tools: { get_weather }, stopWhen: stepCountIs(4) } };
};

for (const model of models) {
  const { called, fields } = asked();
  if (cell === "chat") {
    assert.equal((await generateText({ model, prompt, maxRetries: 0 })).text, text);
  } else if (cell === "stream") {
    assert.equal(await streamText({ model, prompt, maxRetries: 0 }).text, text);
  } else if (cell === "tools") {
    assert.equal((await generateText({ model, ...fields })).text, text);
    assert.deepEqual(called, ["Paris"]);
  } else if (cell === "structured") {
    const output = Output.object({ schema });
    assert.deepEqual((await generateText({ model, prompt, maxRetries: 0, output })).output, wanted);
  } else if (cell === "tools_structured") {
    const output = Output.object({ schema });
    assert.deepEqual((await generateText({ model, ...fields, output })).output, wanted);
    assert.deepEqual(called, ["Paris"]);
  } else throw new Error(`no cell ${cell}`);
}
