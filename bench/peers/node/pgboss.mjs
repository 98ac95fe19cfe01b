// pg-boss: `migrate`, `client` (asked line by line on its input), or one process of workers.
import { createInterface } from "node:readline";
import { PgBoss } from "pg-boss";
import { connectionString, job, waitForStart, workersHere } from "./progress.mjs";

const boss = (options) => {
  const made = new PgBoss({ connectionString, ...options });
  made.on("error", console.error);
  return made;
};

const commands = {
  async migrate() {
    const one = await boss({ supervise: false, schedule: false }).start();
    await one.createQueue("job", { notify: true });
    await one.stop();
  },

  // A line `n sent` is answered with a line once so many jobs are committed. n = 0 is the end.
  async client() {
    const one = await boss({ supervise: false, schedule: false, migrate: false }).start();
    console.log("ready");
    for await (const line of createInterface({ input: process.stdin })) {
      const [n, sent] = line.split(" ").map(Number);
      if (n === 1) await one.send("job", { sent });
      else await one.insert("job", Array.from({ length: n }, () => ({ data: { sent } })));
      console.log("sent");
    }
  },

  async work() {
    const worker = async () => {
      const one = await boss({ useListenNotify: true, migrate: false }).start();
      return () =>
        one.work("job", { batchSize: 100, localConcurrency: 4, burstWhenBatchFull: true }, async (jobs) => {
          for (const { data } of jobs) job(data);
        });
    };
    const workers = await Promise.all(Array.from({ length: workersHere }, worker));
    await waitForStart();
    await Promise.all(workers.map((work) => work()));
    await new Promise(() => {});
  },
};

await commands[process.argv[2] ?? "work"]();
process.exit();
