/** Role `workflow`: one context at a time, from a fresh module graph to its end and the check that the thread may be used again. */

import v8 from "node:v8";
import {
  PromiseThen,
  ReflectApply,
  ReflectConstruct,
  ReflectGetOwnPropertyDescriptor,
  follow,
  quote,
} from "./intrinsics.mjs";
import { activity, dropTimers, hostTimers, taint } from "./quiescence.mjs";
import { DocumentFault, decodeDocument, encodeDocument } from "./documents.mjs";
import { Graph, ModuleProblem } from "./modules.mjs";
import { Environment } from "./environment.mjs";
import { Steps } from "./step.mjs";
import { isPristine, restore } from "./pristine.mjs";
import { drained, hasNoTimers } from "./severed.mjs";
import { ownMessage, shorten, stackOf } from "./thrown.mjs";

const { setImmediate, setTimeout } = hostTimers;
const heapStatistics = v8.getHeapStatistics;
const now = performance.now.bind(performance);

/** How long native work that the context started may take to end before the thread is given up, in ms. */
const SETTLE_MS = 20;
const HEAP_CHECK_EVERY = 32;
/** The `result_length` of a result that is asked for when it is needed. */
const DEFERRED = -2;

export class WorkflowRole {
  /**
   * @param {import("./frames.mjs").Link} link
   * @param {(version: string) => import("./modules.mjs").Code} codeOf
   * @param {import("./console.mjs").TenantConsole} tenantConsole
   * @param {import("./egress.mjs").Egress} egress
   * @param {{ maxContexts: number, maxHeapBytes: number }} limits
   */
  constructor(link, codeOf, tenantConsole, egress, limits) {
    this.link = link;
    this.codeOf = codeOf;
    this.console = tenantConsole;
    this.egress = egress;
    this.limits = limits;
    /** @type {Run | null} */
    this.run = null;
    this.contexts = 0;
  }

  onFrame(/** @type {any} */ header, /** @type {import("./frames.mjs").Body} */ body) {
    switch (header.t) {
      case "start":
        this.contexts++;
        this.console.reset(header.context);
        this.run = new Run(this, header, body);
        this.run.begin();
        break;
      case "reply":
        this.run?.reply(header, body);
        break;
      case "answer":
        this.run?.environment.answer(header, body);
        break;
    }
  }

  /** The host itself failed: the run fails rather than meet the same end again and again. */
  giveUp() {
    this.run?.refuse("the code changed builtin objects in a way that the Host cannot work with");
  }

  /** Errors that reached nobody: told to the log; the context itself goes on. */
  onUncaught(/** @type {unknown} */ error, /** @type {string} */ what) {
    this.console.line("error", [what, error]);
  }

  /** True when this thread has had enough contexts or heap to be replaced by a fresh one. */
  isWornOut() {
    if (this.contexts >= this.limits.maxContexts) return true;
    return this.contexts % HEAP_CHECK_EVERY === 0 && heapStatistics().used_heap_size > this.limits.maxHeapBytes;
  }
}

class Run {
  /** @param {WorkflowRole} role @param {any} header @param {import("./frames.mjs").Body} body */
  constructor(role, header, body) {
    this.role = role;
    this.code = role.codeOf(header.version);
    this.className = /** @type {string} */ (header.class_name);
    this.instanceId = /** @type {string} */ (header.instance_id);
    this.tag = `context-${role.contexts}:/`;
    this.over = false;
    this.stoppedAt = 0;
    const send = (/** @type {string} */ text, /** @type {string | null} */ content = null) => role.link.send(text, content);
    this.send = send;
    const log = (/** @type {string} */ level) => (/** @type {string} */ line) => role.console.line(level, [line]);
    this.log = log("error");
    const fatal = (/** @type {string} */ reason, /** @type {string} */ message, name = "", kind = "") =>
      this.settle("failed", reason, message, null, name, kind);
    this.steps = new Steps(send, fatal, log("warning"));
    this.environment = new Environment(this.code, header.context, send, role.egress);
    let at = /** @type {number} */ (header.params_length);
    this.params = at < 0 ? null : body.text(0, at);
    if (at < 0) at = 0;
    for (let i = 0; i < header.history.length; i++) {
      const step = header.history[i];
      const length = /** @type {number} */ (step.result_length);
      this.steps.remember(step, length < 0 ? null : body.text(at, length), length === DEFERRED);
      if (length > 0) at += length;
    }
  }

  /** Evaluates the graph, constructs the class and calls `run` once (W-081). */
  begin() {
    try {
      const graph = new Graph(this.code, this.tag);
      const main = graph.link();
      PromiseThen(
        graph.evaluate(main),
        () => this.#construct(main),
        (/** @type {unknown} */ error) => this.#threw(error),
      );
    } catch (error) {
      this.#threw(error);
    }
  }

  #construct(/** @type {any} */ main) {
    if (this.over) return;
    try {
      const found = ReflectGetOwnPropertyDescriptor(main.namespace, this.className);
      if (found === undefined || typeof found.value !== "function") {
        this.refuse(`the main module exports no class ${this.className}`);
        return;
      }
      const instance = ReflectConstruct(found.value, [this.environment.build()]);
      const { run } = instance;
      if (typeof run !== "function") {
        this.refuse(`${this.className} has no method run`);
        return;
      }
      const event =
        this.params === null
          ? { instanceId: this.instanceId }
          : { instanceId: this.instanceId, params: decodeDocument(this.params) };
      const result = ReflectApply(run, instance, [event, this.steps.surface()]);
      void follow(
        result,
        (/** @type {unknown} */ value) => this.#returned(value),
        (/** @type {unknown} */ error) => this.#threw(error),
      );
    } catch (error) {
      this.#threw(error);
    }
  }

  #returned(/** @type {unknown} */ value) {
    if (this.over) return;
    if (this.steps.unsettled()) return this.settle("failed", "step_definition_mismatch", this.steps.unsettledMessage(), null);
    const text = value === undefined ? null : encodeDocument(value);
    if (text instanceof DocumentFault) {
      return this.refuse(`run returned no document: ${text.message}`);
    }
    return this.settle("completed", "", "", text);
  }

  #threw(/** @type {unknown} */ error) {
    if (this.over) return;
    if (error instanceof ModuleProblem) {
      this.log(`the modules do not load: ${error.message}`);
      return this.settle("failed", "run_threw", error.message, null);
    }
    this.log(`run failed: ${stackOf(error)}`);
    if (this.over) return; // a tenant's Error.prepareStackTrace called a step
    // Precedence of one settlement (W-140): a mismatch outranks the failure.
    if (this.steps.unsettled()) return this.settle("failed", "step_definition_mismatch", this.steps.unsettledMessage(), null);
    if (this.steps.provenance(error) === "step_failed") {
      return this.settle("failed", "step_failed", this.steps.failureMessage(error), null);
    }
    return this.settle("failed", "run_threw", ownMessage(error), null);
  }

  /** The run fails for a reason that the code has not thrown: its author finds it in the log like any other. */
  refuse(/** @type {string} */ message) {
    if (this.over) return;
    this.settle("failed", "run_threw", message, null);
    this.log(`run failed: ${message}`);
  }

  reply(/** @type {any} */ header, /** @type {import("./frames.mjs").Body} */ body) {
    if (this.over) return;
    switch (header.kind) {
      case "resolve":
        this.steps.settle(header.call, header.has ? body.text() : null, "");
        break;
      case "reject":
        this.steps.settle(header.call, null, header.code);
        break;
      default: // park, stop: nothing settles any more
        this.#finish();
    }
  }

  /**
   * The outcome is decided. It is sent before anything else can run, so a busy loop afterwards cannot hold it back.
   * `step` and `called` are the name and the kind of the step call that decided it.
   */
  settle(
    /** @type {"completed" | "failed"} */ outcome,
    /** @type {string} */ reason,
    /** @type {string} */ message,
    /** @type {string | null} */ output,
    step = "",
    called = "",
  ) {
    if (this.over) return;
    this.send(
      `{"t":"settled","outcome":"${outcome}","reason":"${reason}","message":${quote(shorten(message))},` +
        `"step":${quote(step)},"called":"${called}","has":${output !== null}}`,
      output,
    );
    this.#finish();
  }

  #finish() {
    this.over = true;
    this.steps.over = true;
    this.environment.close();
    this.#drop();
    this.stoppedAt = now();
    setImmediate(this.#check);
  }

  /** What the host would still call the tenant for. */
  #drop() {
    dropTimers();
    this.role.egress.dropAll();
  }

  /** Runs as a macrotask of its own. What the tenant's microtasks of that very task begin is dropped or waited for as well. */
  #check = () => {
    const isDrained = drained();
    this.#drop();
    const busy = activity.pending > 0 || !isDrained;
    if (busy && activity.tainted === "" && now() - this.stoppedAt < SETTLE_MS) {
      if (isDrained) setTimeout(this.#check, 1);
      else setImmediate(this.#check);
      return;
    }
    if (!isDrained) taint("work of Node's is unfinished");
    else if (!hasNoTimers()) taint("a timer of Node's waits");
    const begun = now();
    const quiescent = activity.pending === 0 && activity.tainted === "";
    const untouched = quiescent && isPristine();
    const pristine = untouched || (quiescent && restore() && activity.pending === 0 && activity.tainted === "");
    const took = now() - begun;
    const { role } = this;
    role.run = null;
    let why = "";
    if (!quiescent) why = activity.tainted !== "" ? activity.tainted : "native work is unfinished";
    else if (!pristine) why = "the realm was changed for good";
    else if (role.isWornOut()) why = "worn out";
    else if (!untouched) why = "the realm was restored";
    this.send(`{"t":"ended","quiescent":${quiescent},"pristine":${pristine},"worn_out":${why === "worn out"},"why":${quote(why)},"took":${took}}`);
  };
}

