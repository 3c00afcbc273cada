// BullMQ on Node, measured as run.py measures the others:
//     node bullmq.mjs drain|latency <port> <count> <concurrency>
import { Queue, Worker } from "bullmq";

const [what, port, count, concurrency] = process.argv.slice(2).map((word, i) => (i ? Number(word) : word));
const connection = { host: "127.0.0.1", port, maxRetriesPerRequest: null };
const queue = new Queue("bench", { connection, defaultJobOptions: { removeOnComplete: true } });
const now = () => Number(process.hrtime.bigint()) / 1e6;

function print(result) {
  process.stdout.write(JSON.stringify(result) + "\n", () => process.exit(0));
}

async function drain() {
  const payload = "x".repeat(100);
  for (let first = 0; first < count; first += 1000) {
    await queue.addBulk(Array.from({ length: Math.min(1000, count - first) }, () => ({ name: "run", data: payload })));
  }
  let done = 0;
  let begun = 0;
  new Worker("bench", async () => {
    done += 1;
    if (done === 1) begun = now();
    if (done === count) print({ jobs_per_second: (1000 * (count - 1)) / (now() - begun) });
  }, { connection, concurrency });
}

async function latency() {
  const heard = [];
  let came = () => {};
  const worker = new Worker("bench", async (job) => {
    heard.push(now() - job.data);
    came();
  }, { connection, concurrency });
  await worker.waitUntilReady();
  await new Promise((resolve) => setTimeout(resolve, 1000));
  for (let i = 0; i < count; i += 1) {
    const arrived = new Promise((resolve) => { came = resolve; });
    await queue.add("run", now());
    await arrived;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  print({ milliseconds: heard });
}

await (what === "drain" ? drain() : latency());
