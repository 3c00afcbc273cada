// BullMQ on Node, with the words that run.py has:
//     node bullmq.mjs add|bulk|pace|work <url> <count> <settings as JSON>
import { createInterface } from "node:readline";
import { Queue, Worker } from "bullmq";

const [what, url, howMany, json] = process.argv.slice(2);
const count = Number(howMany);
const settings = JSON.parse(json);
const { hostname, port } = new URL(url);
const connection = { host: hostname, port: Number(port), maxRetriesPerRequest: null };
const WARM = 20;

const now = () => Number(process.hrtime.bigint()) / 1e9;
const tell = (said) => process.stdout.write(JSON.stringify(said) + "\n");
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
const payload = (word = "") => `${now().toFixed(6)} ${word} `.padEnd(100, "x");
const opened = () => new Queue("bench", { connection, defaultJobOptions: { removeOnComplete: true } });

async function add() {
  const queue = opened();
  const data = payload();
  const warm = Math.min(WARM, count - 1);
  let begun = 0;
  for (let i = 0; i < count; i += 1) {
    if (i === warm) begun = now();
    await queue.add("run", data);
  }
  tell({ jobs_per_second: (count - warm) / (now() - begun) });
}

async function bulk() {
  const queue = opened();
  const size = settings.chunk ?? 100;
  const chunk = Array.from({ length: size }, () => ({ name: "run", data: payload() }));
  let begun = 0;
  for (let i = 0; i < Math.floor(count / size); i += 1) {
    if (i === 1) begun = now();
    await queue.addBulk(chunk);
  }
  tell({ jobs_per_second: (Math.floor(count / size) * size - size) / (now() - begun) });
}

async function pace() {
  const queue = opened();
  for (let i = 0; i < count; i += 1) {
    await sleep(settings.pause ?? 0.02);
    await queue.add("run", payload(settings.held ? "held" : ""));
  }
  tell({ added: count });
}

async function work() {
  let done = 0, first = 0, last = 0, told = 0, waited = [];
  const watch = settings.watch ?? "count";
  const handle = async (job) => {
    if (watch === "hold" && !job.data.includes("held")) return;
    last = now();
    if (done === 0) first = last;
    if (watch !== "count") waited.push(last - parseFloat(job.data));
    done += 1;
    if (watch === "hold") await sleep(600);
  };
  tell({ ready: true });
  await new Promise((resolve) => createInterface({ input: process.stdin }).once("line", resolve));
  const parent = process.ppid;
  setInterval(() => {
    if (process.ppid !== parent) process.exit(1);
    if (done === told) return;
    tell({ done, first, last, waited });
    [told, waited] = [done, []];
  }, 50);
  const more = settings.lease ? { lockDuration: 1000 * settings.lease, stalledInterval: 1000 * settings.lease } : {};
  new Worker("bench", handle, { connection, concurrency: settings.concurrency, ...more });
  await new Promise(() => {});
}

await { add, bulk, pace, work }[what]();
process.stdout.write("", () => process.exit(0));
