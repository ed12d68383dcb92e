// The official OpenAI client for Node against Leeway, unmodified but for base
// URL and key. Prints one JSON object of what it saw; the test judges it.
import OpenAI from 'openai';

const [base, what] = process.argv.slice(2);
const requests = [];
const client = new OpenAI({
  baseURL: base + '/v1',
  apiKey: 'any',
  maxRetries: 4,
  // The client's own fetch, with a note of each request beside it.
  fetch: async (url, init) => {
    const at = Date.now();
    const resp = await fetch(url, init);
    requests.push({
      at_ms: at, status: resp.status, retry_after: resp.headers.get('retry-after'),
      path: resp.headers.get('x-leeway-path'), job_id: resp.headers.get('x-leeway-job-id'),
      should_retry: resp.headers.get('x-should-retry'),
    });
    return resp;
  },
});
const text = 'The slack gate admits only what can be answered in time. A reject is told at once. ' +
  'Every attempt has one row in the spend ledger. Every miss has one row in the other.';
const ask = { model: 'summary', messages: [{ role: 'user', content: text }] };

const does = {
  async complete() {
    const done = await client.chat.completions.create(ask);
    return { content: done.choices[0].message.content, finish: done.choices[0].finish_reason, usage: done.usage };
  },
  async stream() {
    const stream = await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } });
    const out = { content: '', pieces: 0 };
    for await (const chunk of stream) {
      const choice = chunk.choices[0];
      if (choice?.delta.content) { out.content += choice.delta.content; out.pieces++; }
      if (choice?.finish_reason) out.finish = choice.finish_reason;
      if (chunk.usage) out.usage = chunk.usage;
    }
    return out;
  },
  // Fills the gate with submissions of its own, then asks for a completion.
  async retry() {
    const fill = { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ text }) };
    for (let n = 0; n < 200; n++) {
      const resp = await fetch(base + '/v1/jobs', fill);
      await resp.arrayBuffer();
      if (resp.status !== 202) break;
    }
    return does.complete();
  },
  async refused() {
    try {
      await client.chat.completions.create(ask, { headers: { 'X-Deadline-Ms': '1' } });
    } catch (err) {
      return { name: err.constructor.name, status: err.status, code: err.code };
    }
    return {};
  },
  async leave() {
    const stream = await client.chat.completions.create({ ...ask, stream: true });
    for await (const chunk of stream) {
      if (chunk.choices[0]?.delta.content) break; // leaving the loop ends the request
    }
    stream.controller.abort();
    return {};
  },
  async models() {
    return { models: (await client.models.list()).data.map((m) => m.id) };
  },
};

console.log(JSON.stringify({ ...(await does[what]()), requests }));
