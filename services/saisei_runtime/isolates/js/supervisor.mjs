/**
 * The process' main thread: starts threads, ends them, and tells when each has been joined. It never runs tenant code, so it always answers.
 *
 * Its line is file descriptor 0, one end of a socket pair; when the other end closes the process ends at once.
 */

import net from "node:net";
import process from "node:process";
import { Worker } from "node:worker_threads";
import { Link, PROTOCOL_VERSION } from "./frames.mjs";
import { quote } from "./intrinsics.mjs";

/** @type {Map<number, Worker>} */
const threads = new Map();
const entry = new URL("./thread.mjs", import.meta.url);

/** For how long, in ms, the runtime may be silent. Shorter than its lease: what another runtime may have taken over must not run here. */
const orphanedAfter = Number(process.argv[2]);
const now = performance.now.bind(performance);
let heard = now();

const die = () => process.kill(process.pid, "SIGKILL");
const line = new net.Socket({ fd: 0, readable: true, writable: true });
const link = new Link(line, onFrame, die, { patience: orphanedAfter });
// A stopped process that goes on finds out before its next order.
setInterval(() => {
  if (now() - heard > orphanedAfter) die();
}, orphanedAfter / 20);
const tell = (/** @type {string} */ header) => link.send(header);

/** @param {{ thread: number, settings: object, limits: import("node:worker_threads").ResourceLimits }} order */
function spawn({ thread, settings, limits }) {
  const worker = new Worker(entry, {
    workerData: settings,
    resourceLimits: limits,
    env: {},
    argv: [],
    stdin: false,
    stdout: true,
    stderr: true,
    trackUnmanagedFds: true,
    name: "",
  });
  threads.set(thread, worker);
  let why = "";
  worker.on("error", (error) => {
    const code = /** @type {any} */ (error)?.code;
    why = code === "ERR_WORKER_OUT_OF_MEMORY" ? "out of memory" : `${/** @type {any} */ (error)?.message ?? error}`.slice(0, 500);
  });
  worker.on("exit", () => {
    threads.delete(thread);
    tell(`{"t":"joined","thread":${thread},"why":${quote(why)}}`);
  });
  worker.stdout.resume();
  worker.stderr.resume();
}

function onFrame(/** @type {any} */ header) {
  if (now() - heard > orphanedAfter) die();
  heard = now();
  switch (header.t) {
    case "spawn":
      spawn(header);
      break;
    case "kill": {
      const worker = threads.get(header.thread);
      // Joined already: the report is on its way or was sent.
      if (worker !== undefined) void worker.terminate();
      break;
    }
    case "ping":
      tell(`{"t":"pong","number":${header.number}}`);
      break;
  }
}

tell(`{"t":"ready","version":${PROTOCOL_VERSION}}`);
