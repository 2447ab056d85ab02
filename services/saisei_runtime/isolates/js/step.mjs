/**
 * `step` (W-090 … W-134): the checks of a call in their order, replay of finished names, and one message for each new step.
 *
 * A decision that the tenant must not be able to catch (W-121) never settles a Promise: it ends the context from outside.
 */

import {
  MapGet,
  MapSet,
  NumberIsInteger,
  ObjectFreeze,
  ObjectHasOwn,
  ObjectPrototype,
  PromiseThen,
  ReflectApply,
  ReflectDefineProperty,
  ReflectDeleteProperty,
  ReflectGetOwnPropertyDescriptor,
  ReflectGetPrototypeOf,
  ReflectOwnKeys,
  SafeError,
  SafeMap,
  SafePromise,
  SafeTypeError,
  SafeWeakMap,
  StringCharCodeAt,
  StringIsWellFormed,
  WeakMapGet,
  WeakMapSet,
  quote,
} from "./intrinsics.mjs";
import { DocumentFault, decodeDocument, encodeDocument } from "./documents.mjs";
import { describeThrown } from "./thrown.mjs";

export const MAX_STEPS = 1024;
const MAX_TEXT = 256;
const MAX_DELAY = 43_200;
const MAX_SECONDS = 31_536_000;

/** Unicode scalars of a well-formed string: a surrogate pair counts once. */
function scalars(/** @type {string} */ text) {
  let count = text.length;
  for (let i = 0; i < text.length; i++) {
    const unit = StringCharCodeAt(text, i);
    if (unit >= 0xd800 && unit < 0xdc00) count--;
  }
  return count;
}

/** A name, type or id: 1 to 256 scalars, no lone surrogate (W-020, W-091). @returns {value is string} */
export function isText(/** @type {unknown} */ value) {
  if (typeof value !== "string" || value.length === 0 || value.length > MAX_TEXT * 2) return false;
  return StringIsWellFormed(value) && scalars(value) <= MAX_TEXT;
}

/**
 * A closed options object, read by descriptors (W-097).
 * @returns {Record<string, unknown> | null} null-prototype record of the given keys, or null when it is malformed
 */
export function readOptions(/** @type {unknown} */ value, /** @type {readonly string[]} */ allowed) {
  if (typeof value !== "object" || value === null) return null;
  try {
    const prototype = ReflectGetPrototypeOf(value);
    if (prototype !== ObjectPrototype && prototype !== null) return null;
    const keys = ReflectOwnKeys(value);
    /** @type {any} */
    const out = { __proto__: null };
    for (let i = 0; i < keys.length; i++) {
      const key = keys[i];
      let known = false;
      for (let j = 0; j < allowed.length; j++) if (allowed[j] === key) known = true;
      const found = known ? ReflectGetOwnPropertyDescriptor(value, /** @type {string} */ (key)) : undefined;
      if (found === undefined || !ObjectHasOwn(found, "value") || !found.enumerable) return null;
      out[/** @type {string} */ (key)] = found.value;
    }
    return out;
  } catch {
    return null; // a Proxy trap threw
  }
}

const within = (/** @type {unknown} */ value, /** @type {number} */ low, /** @type {number} */ high) =>
  NumberIsInteger(value) && /** @type {number} */ (value) >= low && /** @type {number} */ (value) <= high;

const POLICY_KEYS = ObjectFreeze(["maxAttempts", "initialDelaySeconds", "backoff", "maxDelaySeconds"]);
const WAIT_KEYS = ObjectFreeze(["type", "timeoutSeconds"]);
const ONE_ATTEMPT = '{"max_attempts":1,"initial_delay_seconds":0,"backoff":"constant","max_delay_seconds":43200}';

/** The JSON of a retry policy (W-101), or null when it is malformed. */
function readPolicy(/** @type {unknown} */ value) {
  if (value === undefined) return ONE_ATTEMPT;
  const given = readOptions(value, POLICY_KEYS);
  if (given === null) return null;
  const { maxAttempts, initialDelaySeconds = 0, backoff = "constant", maxDelaySeconds = MAX_DELAY } = given;
  if (!within(maxAttempts, 1, 100)) return null;
  if (!within(initialDelaySeconds, 0, MAX_DELAY) || !within(maxDelaySeconds, 0, MAX_DELAY)) return null;
  if (backoff !== "constant" && backoff !== "exponential") return null;
  return (
    `{"max_attempts":${maxAttempts},"initial_delay_seconds":${initialDelaySeconds},` +
    `"backoff":"${backoff}","max_delay_seconds":${maxDelaySeconds}}`
  );
}

/** Resolves with a decoded document although a tenant may have put a `then` on Object.prototype. */
export function resolveWith(/** @type {(value: unknown) => void} */ resolve, /** @type {any} */ value) {
  const poisoned = typeof value === "object" && value !== null && ObjectHasOwn(ObjectPrototype, "then") && !ObjectHasOwn(value, "then");
  if (!poisoned) {
    resolve(value);
    return;
  }
  const shadow = /** @type {any} */ ({ __proto__: null, value: undefined, configurable: true, enumerable: false, writable: true });
  ReflectDefineProperty(value, "then", shadow);
  resolve(value);
  ReflectDeleteProperty(value, "then");
}

/** A step name as this context knows it. */
class Entry {
  /** @param {string} name @param {string} kind @param {"open" | "complete" | "errored"} state */
  constructor(name, kind, state) {
    this.name = name;
    this.kind = kind;
    this.state = state;
    this.failedAttempts = 0;
    /** Canonical text of the result; null is "none". @type {string | null} */
    this.result = null;
    /** The code of the recorded failure. */
    this.error = "";
  }
}
Object.setPrototypeOf(Entry.prototype, null);

/** The one unsettled call (W-120). */
class Call {
  /** @param {number} id @param {Entry} entry @param {(v: unknown) => void} resolve @param {(e: unknown) => void} reject */
  constructor(id, entry, resolve, reject) {
    this.id = id;
    this.entry = entry;
    this.resolve = resolve;
    this.reject = reject;
  }
}
Object.setPrototypeOf(Call.prototype, null);

const never = () => new SafePromise(() => {});
const refuse = (/** @type {string} */ why) => new SafePromise((_, reject) => reject(new SafeTypeError(why)));

export class Steps {
  /**
   * @param {(header: string, body?: string | null) => void} send
   * @param {(reason: string) => void} fatal ends the context, uncatchably, with that reason
   */
  constructor(send, fatal) {
    this.send = send;
    this.fatal = fatal;
    /** @type {Map<string, Entry>} */
    this.entries = new SafeMap();
    this.count = 0;
    /** Names without an outcome, of earlier contexts or of this one (W-122). */
    this.open = 0;
    /** @type {Call | null} */
    this.active = null;
    this.lastId = 0;
    this.over = false;
    /** Host Errors of this context by identity (W-131). @type {WeakMap<object, string>} */
    this.genuine = new SafeWeakMap();
  }

  /** One journaled step, given before the code starts. */
  remember(/** @type {any} */ step, /** @type {string | null} */ result) {
    const entry = new Entry(step.name, step.kind, step.state);
    entry.failedAttempts = step.failed_attempts;
    entry.result = result;
    entry.error = step.error ?? "";
    MapSet(this.entries, step.name, entry);
    this.count++;
    if (step.state === "open") this.open++;
  }

  /** True when a settlement now would leave a step unsettled (W-120, W-122). */
  unsettled() {
    return this.active !== null || this.open > 0;
  }

  /** The code of a Host Error of this very context, or undefined. */
  provenance(/** @type {unknown} */ value) {
    return typeof value === "object" && value !== null ? WeakMapGet(this.genuine, value) : undefined;
  }

  /** The frozen `step` argument. */
  surface() {
    return ObjectFreeze({
      do: (/** @type {unknown} */ name, /** @type {unknown} */ effect, /** @type {unknown} */ retryPolicy) =>
        this.#call("do", name, () => {
          if (typeof effect !== "function") return "the effect of step.do is a function";
          return readPolicy(retryPolicy) === null ? "the retryPolicy of step.do is malformed" : "";
        }, (call) => this.#run(call, /** @type {Function} */ (effect), /** @type {string} */ (readPolicy(retryPolicy)))),
      sleep: (/** @type {unknown} */ name, /** @type {unknown} */ seconds) =>
        this.#call("sleep", name, () =>
          within(seconds, 0, MAX_SECONDS) ? "" : "step.sleep takes whole seconds from 0 to 31,536,000",
        (call) => this.send(`{"t":"sleep","call":${call.id},"name":${quote(call.entry.name)},"seconds":${seconds}}`)),
      waitForEvent: (/** @type {unknown} */ name, /** @type {unknown} */ options) => {
        /** @type {Record<string, unknown> | null} */
        let given = null;
        return this.#call("wait", name, () => {
          given = readOptions(options, WAIT_KEYS);
          return given !== null && isText(given["type"]) && within(given["timeoutSeconds"], 1, MAX_SECONDS)
            ? ""
            : "step.waitForEvent takes {type, timeoutSeconds}: 1 to 256 characters, and whole seconds from 1 to 31,536,000";
        }, (call) =>
          this.send(
            `{"t":"wait","call":${call.id},"name":${quote(call.entry.name)},` +
              `"type":${quote(/** @type {any} */ (given)["type"])},"timeout_seconds":${/** @type {any} */ (given)["timeoutSeconds"]}}`,
          ));
      },
    }); // prettier-ignore
  }

  /** The checks of W-092 in order. `check` gives "" or what is wrong with the remaining arguments. */
  #call(
    /** @type {"do" | "sleep" | "wait"} */ kind,
    /** @type {unknown} */ name,
    /** @type {() => string} */ check,
    /** @type {(call: Call) => void} */ perform,
  ) {
    if (this.over) return never();
    if (this.active !== null) return this.#end("step_definition_mismatch");
    if (!isText(name)) return refuse("a step name is a string of 1 to 256 characters without lone surrogates");
    /** @type {Entry | undefined} */
    let entry = MapGet(this.entries, name);
    if (entry !== undefined && entry.state !== "open") return this.#replay(entry, kind);
    if (entry !== undefined && entry.kind !== kind) return this.#end("step_definition_mismatch");
    const fault = check();
    // A Proxy among the arguments may have run code that ended the context or called a step.
    if (this.over) return never();
    if (this.active !== null) return this.#end("step_definition_mismatch");
    if (fault !== "") return refuse(fault);
    if (entry === undefined) {
      if (this.count >= MAX_STEPS) return this.#end("step_limit_exceeded");
      entry = new Entry(name, kind, "open");
      MapSet(this.entries, name, entry);
      this.count++;
      this.open++;
    }
    const called = entry;
    return new SafePromise((resolve, reject) => {
      this.active = new Call(++this.lastId, called, resolve, reject);
      perform(this.active);
    });
  }

  #end(/** @type {string} */ reason) {
    this.fatal(reason);
    return never();
  }

  /** A finished name gives its recorded outcome, whatever the method (W-094), and settles in a later job (W-099). */
  #replay(/** @type {Entry} */ entry, /** @type {string} */ kind) {
    return new SafePromise((resolve, reject) => {
      const call = new Call(++this.lastId, entry, resolve, reject);
      this.active = call;
      PromiseThen(settled, () => {
        if (this.over || this.active !== call) return;
        this.active = null;
        if (entry.state === "errored") reject(this.#hostError(entry.error, entry.name));
        else resolveWith(resolve, entry.result === null || kind === "sleep" ? undefined : decodeDocument(entry.result));
      });
    });
  }

  /** @param {string} policy JSON */
  #run(/** @type {Call} */ call, /** @type {Function} */ effect, policy) {
    const { entry, id } = call;
    const attempt = entry.failedAttempts + 1;
    const about = `"name":${quote(entry.name)},"attempt":${attempt}`;
    this.send(`{"t":"do_started",${about},"policy":${policy}}`);
    const failed = (/** @type {string} */ name, /** @type {string} */ message) => {
      if (this.over) return;
      this.send(
        `{"t":"do_failed","call":${id},${about},"policy":${policy},"error_name":${quote(name)},"error_message":${quote(message)}}`,
      );
    };
    const threw = (/** @type {unknown} */ error) => {
      if (this.over) return;
      const { name, message } = describeThrown(error);
      failed(name, message);
    };
    const gave = (/** @type {unknown} */ value) => {
      if (this.over) return;
      const text = value === undefined ? null : encodeDocument(value);
      if (text instanceof DocumentFault) {
        failed(text.kind === "invalid" ? "TypeError" : "document_too_large", `the result is no document: ${text.message}`);
      } else if (!this.over) {
        this.send(`{"t":"do_succeeded","call":${id},${about},"has":${text !== null}}`, text);
      }
    };
    PromiseThen(
      new SafePromise((resolve) => resolve(ReflectApply(effect, undefined, []))),
      gave,
      threw,
    );
  }

  /** The engine's answer: settles the call with a result or with the Host Error of that code. */
  settle(/** @type {number} */ id, /** @type {string | null} */ result, /** @type {string} */ code) {
    const call = this.active;
    if (this.over || call === null || call.id !== id) return;
    const { entry } = call;
    this.active = null;
    this.open--;
    if (code !== "") {
      entry.state = "errored";
      entry.error = code;
      call.reject(this.#hostError(code, entry.name));
      return;
    }
    entry.state = "complete";
    entry.result = result;
    resolveWith(call.resolve, result === null ? undefined : decodeDocument(result));
  }

  #hostError(/** @type {string} */ code, /** @type {string} */ name) {
    const error = new SafeError(code === "step_failed" ? `step "${name}" failed` : `step "${name}" ended with ${code}`);
    const shown = /** @type {any} */ ({ __proto__: null, value: code, writable: false, enumerable: false, configurable: false });
    ReflectDefineProperty(error, "name", shown);
    WeakMapSet(this.genuine, error, code);
    return error;
  }
}
Object.setPrototypeOf(Steps.prototype, null);

const settled = SafePromise.resolve();
