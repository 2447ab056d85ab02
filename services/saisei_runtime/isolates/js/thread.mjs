/** A thread: prepares the realm, opens its own line to the runtime and plays its role. */

import "./webapi.mjs";
import { installBodies } from "./bodies.mjs";
import process from "node:process";
import { workerData } from "node:worker_threads";
import { MapDelete, MapGet, MapSet, SafeMap, host, quote } from "./intrinsics.mjs";
import { Link, PROTOCOL_VERSION } from "./frames.mjs";
import { activity, install, settle, taint } from "./quiescence.mjs";
import { closeInternals, watchResources } from "./internals.mjs";
import { installTransfers } from "./transfer.mjs";
import { preload, strip } from "./globals.mjs";
import { TenantConsole } from "./console.mjs";
import { Code } from "./modules.mjs";
import { capture } from "./pristine.mjs";
import { listenOnly } from "./severed.mjs";
import { specimens } from "./specimens.mjs";
import { Egress, closedFetch } from "./egress.mjs";
import { WorkflowRole } from "./workflow.mjs";
import { ServeRole } from "./serve.mjs";
import { InspectRole } from "./inspect.mjs";

/** @type {{ socket: string, thread: number, token: string, role: string, maxContexts: number, maxHeapBytes: number }} */
const settings = workerData;

const exit = process.exit.bind(process);
const on = process.on.bind(process);

/** @type {Map<string, Code>} */
const codes = new SafeMap();
/** @type {any} */
let role;

/** What the host itself cannot do in this realm it will not be able to do again: the thread is given up, not left hanging. */
function giveUp(/** @type {unknown} */ error) {
  try {
    role.onUncaught(error, "The thread cannot go on:");
    role.giveUp();
  } finally {
    exit(1);
  }
}
host.giveUp = giveUp;

const tenantConsole = new TenantConsole((header) => link.send(header));

const egress = new Egress((header, body) => link.send(header, body));

const uncaught = (/** @type {unknown} */ error) => {
  // Nobody can say what else the failed callback left undone.
  taint("an uncaught error");
  role?.onUncaught(error, "Uncaught error:");
};
activity.onUncaught = (error, where) => role?.onUncaught(error, `Uncaught error in ${where}:`);
// The listeners only tell Node that there are some.
for (const name of ["uncaughtException", "unhandledRejection", "warning"]) on(name, () => {});
listenOnly(process, {
  uncaughtException: uncaught,
  unhandledRejection: (/** @type {unknown} */ reason) => role?.onUncaught(reason, "Unhandled rejection:"),
});

preload();
install();
closeInternals();
installTransfers();
installBodies();
strip({ console: tenantConsole.surface(), fetch: settings.role === "inspect" ? closedFetch : egress.surface() });
capture(await specimens());
// The specimens' own timers, jobs and natives are no tenant's.
settle();

const link = new Link(
  { path: settings.socket },
  (header, body) => {
    try {
      if (header.t === "code") MapSet(codes, header.version, new Code(header, body));
      else if (header.t === "forget") MapDelete(codes, header.version);
      else if (!egress.onFrame(header, body)) role.onFrame(header, body);
    } catch (error) {
      giveUp(error);
    }
  },
  () => exit(0),
  { onOpen: open },
);

const codeOf = (/** @type {string} */ version) => MapGet(codes, version);
const limits = { maxContexts: settings.maxContexts, maxHeapBytes: settings.maxHeapBytes };
switch (settings.role) {
  case "workflow":
    role = new WorkflowRole(link, codeOf, tenantConsole, egress, limits);
    break;
  case "serve":
    role = new ServeRole(link, codeOf, tenantConsole, egress);
    break;
  default:
    role = new InspectRole(link, codeOf);
}

/** The line is there: nothing native is made from now on that is not a tenant's. */
function open() {
  watchResources();
  link.send(`{"t":"hello","thread":${settings.thread},"token":${quote(settings.token)},"version":${PROTOCOL_VERSION}}`);
}
