/**
 * `step` (W-090 … W-134): the checks of a call in their order, replay of finished names, and one message for each new step.
 *
 * A decision that the tenant must not be able to catch (W-121) never settles a Promise: it ends the context from outside.
 */

import {
  JSONParse,
  MapForEach,
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
  follow,
  quote,
} from "./intrinsics.mjs";
import { DocumentFault, decodeDocument, encodeDocument } from "./documents.mjs";
import { nameOf } from "./kinds.mjs";
import { needStack } from "./stack.mjs";
import { describeThrown, shorten, stackOf } from "./thrown.mjs";

export const MAX_STEPS = 1024;
const MAX_TEXT = 256;
const MAX_CAUSE = 4_096;
const MAX_DELAY = 43_200;
const MAX_SECONDS = 31_536_000;
/** How many UTF-16 units of results one context holds: 1,024 results of 1 MiB are more than its heap. The rest is asked for. */
const MAX_HELD = 16_777_216;

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

/** A method of `step`, as its callers write it. */
const METHODS = /** @type {Record<string, any>} */ ({ __proto__: null, do: "step.do", sleep: "step.sleep", wait: "step.waitForEvent" });

/** What is wrong with a retry policy (W-101). */
function policyFault(/** @type {unknown} */ value) {
  const given = readOptions(value, POLICY_KEYS);
  if (given === null) return `the retryPolicy of step.do is a plain object; ${optionsFault(value, POLICY_KEYS)}`;
  const wrong = (/** @type {string} */ key, /** @type {string} */ rule) =>
    `retryPolicy.${key} of step.do is ${rule}, not ${shown(given[key])}`;
  if (!within(given["maxAttempts"], 1, 100)) return wrong("maxAttempts", "required, and a whole number from 1 to 100");
  const delays = ["initialDelaySeconds", "maxDelaySeconds"];
  for (let i = 0; i < delays.length; i++) {
    const key = /** @type {string} */ (delays[i]);
    if (given[key] !== undefined && !within(given[key], 0, MAX_DELAY)) return wrong(key, "a whole number of seconds from 0 to 43,200");
  }
  return wrong("backoff", '"constant" or "exponential"');
}

/** Why `readOptions` refused a value. */
export function optionsFault(/** @type {unknown} */ value, /** @type {readonly string[]} */ allowed) {
  let known = "";
  for (let i = 0; i < allowed.length; i++) known += (i > 0 ? ", " : "") + allowed[i];
  try {
    if (typeof value === "object" && value !== null) {
      const keys = ReflectOwnKeys(value);
      for (let i = 0; i < keys.length; i++) {
        const key = keys[i];
        let isKnown = false;
        for (let j = 0; j < allowed.length; j++) if (allowed[j] === key) isKnown = true;
        if (!isKnown) return `${typeof key === "string" ? quote(key) : "a symbol"} is none of its keys, which are ${known}`;
      }
    }
  } catch {
    // a Proxy trap threw: the general words serve
  }
  return `its keys are ${known}, and it is ${nameOf(value)}`;
}

/** A value in a message: primitives as they are written, anything else by its kind. */
function shown(/** @type {unknown} */ value) {
  if (typeof value === "string") return value.length <= 64 ? quote(value) : "a longer string";
  return typeof value === "number" || typeof value === "boolean" ? `${value}` : nameOf(value);
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
    /** There is a result, and this context does not hold it. */
    this.deferred = false;
    /** The code of the recorded failure. */
    this.error = "";
    /** Of the last attempt, when a `do` failed: "TypeError: …". */
    this.cause = "";
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

/** "TypeError: …" of what an attempt failed with. */
const causeOf = (/** @type {{ name: string, message: string }} */ { name, message }) => shorten(message === "" ? name : `${name}: ${message}`, MAX_CAUSE);

const never = () => new SafePromise(() => {});
const refuse = (/** @type {string} */ why) => new SafePromise((_, reject) => reject(new SafeTypeError(why)));

export class Steps {
  /**
   * @param {(header: string, body?: string | null) => void} send
   * @param {(reason: string, message: string, name?: string, kind?: string) => void} fatal ends the context, uncatchably, with
   *   that reason; `name` and `kind` are those of the call that did it, unless it only came too early
   * @param {(line: string) => void} log a line about a failed attempt
   */
  constructor(send, fatal, log) {
    this.send = send;
    this.fatal = fatal;
    this.log = log;
    /** @type {Map<string, Entry>} */
    this.entries = new SafeMap();
    this.count = 0;
    /** Names without an outcome, of earlier contexts or of this one (W-122). */
    this.open = 0;
    /** @type {Call | null} */
    this.active = null;
    this.lastId = 0;
    /** UTF-16 units of the results that the entries hold. */
    this.held = 0;
    this.over = false;
    /** Host Errors of this context by identity (W-131). @type {WeakMap<object, string>} */
    this.genuine = new SafeWeakMap();
    /** Their messages, whatever the app made of them. @type {WeakMap<object, string>} */
    this.failures = new SafeWeakMap();
  }

  /** One journaled step, given before the code starts. */
  remember(/** @type {any} */ step, /** @type {string | null} */ result, /** @type {boolean} */ deferred) {
    const entry = new Entry(step.name, step.kind, step.state);
    entry.failedAttempts = step.failed_attempts;
    entry.error = step.error ?? "";
    // The result of a failed step is what its last attempt failed with.
    if (step.state !== "errored") this.#keep(entry, result, deferred);
    else if (result !== null) entry.cause = causeOf(JSONParse(result));
    MapSet(this.entries, step.name, entry);
    this.count++;
    if (step.state === "open") this.open++;
  }

  /** Holds the result of a finished step, if there is room for it. */
  #keep(/** @type {Entry} */ entry, /** @type {string | null} */ result, deferred = false) {
    const length = result === null ? 0 : result.length;
    entry.deferred = deferred || this.held + length > MAX_HELD;
    if (entry.deferred) return;
    entry.result = result;
    this.held += length;
  }

  /** True when a settlement now would leave a step unsettled (W-120, W-122). */
  unsettled() {
    return this.active !== null || this.open > 0;
  }

  /** What is wrong when `run` settles now; only when `unsettled`. */
  unsettledMessage() {
    if (this.active !== null) return `run ended while step ${quote(this.active.entry.name)} was unsettled: await each step`;
    let name = "";
    MapForEach(this.entries, (/** @type {Entry} */ entry) => {
      if (entry.state === "open" && name === "") name = entry.name;
    });
    return (
      `run ended without coming back to step ${quote(name)}, which an earlier run of the code began: ` +
      "while an instance is unfinished, new code must still reach the step that it is in"
    );
  }

  /** What `run` failed with, when a genuine step_failed was not caught. */
  failureMessage(/** @type {any} */ error) {
    return shorten(WeakMapGet(this.failures, error) ?? "");
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
          if (typeof effect !== "function") return `step.do takes (name, effect, retryPolicy?); the effect is a function, not ${nameOf(effect)}`;
          return readPolicy(retryPolicy) === null ? policyFault(retryPolicy) : "";
        }, (call) => this.#run(call, /** @type {Function} */ (effect), /** @type {string} */ (readPolicy(retryPolicy)))),
      sleep: (/** @type {unknown} */ name, /** @type {unknown} */ seconds) =>
        this.#call("sleep", name, () =>
          within(seconds, 0, MAX_SECONDS) ? "" : `step.sleep takes whole seconds from 0 to 31,536,000, not ${shown(seconds)}`,
        (call) => this.send(`{"t":"sleep","call":${call.id},"name":${quote(call.entry.name)},"seconds":${seconds}}`)),
      waitForEvent: (/** @type {unknown} */ name, /** @type {unknown} */ options) => {
        /** @type {Record<string, unknown> | null} */
        let given = null;
        return this.#call("wait", name, () => {
          given = readOptions(options, WAIT_KEYS);
          if (given === null) return `step.waitForEvent takes (name, {type, timeoutSeconds}); ${optionsFault(options, WAIT_KEYS)}`;
          if (!isText(given["type"])) return `type of step.waitForEvent is a string of 1 to 256 characters, not ${shown(given["type"])}`;
          return within(given["timeoutSeconds"], 1, MAX_SECONDS)
            ? ""
            : `timeoutSeconds of step.waitForEvent is required, and a whole number from 1 to 31,536,000, not ${shown(given["timeoutSeconds"])}`;
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
    needStack();
    if (this.over) return never();
    if (this.active !== null) return this.#overlap(name);
    if (!isText(name)) return refuse(`a step name is a string of 1 to 256 characters without lone surrogates, not ${shown(name)}`);
    /** @type {Entry | undefined} */
    let entry = MapGet(this.entries, name);
    if (entry !== undefined && entry.state !== "open") return this.#replay(entry, kind);
    if (entry !== undefined && entry.kind !== kind) {
      return this.#end(
        "step_definition_mismatch",
        `step ${quote(name)} is unfinished and was begun with ${METHODS[entry.kind]}; now ${METHODS[kind]} uses its name`,
        name,
        kind,
      );
    }
    const fault = check();
    // A Proxy among the arguments may have run code that ended the context or called a step.
    if (this.over) return never();
    if (this.active !== null) return this.#overlap(name);
    if (fault !== "") return refuse(fault);
    if (entry === undefined) {
      if (this.count >= MAX_STEPS) {
        const message = `step ${quote(name)} would be the 1,025th: an instance has at most 1,024 steps`;
        return this.#end("step_limit_exceeded", message, name, kind);
      }
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

  #end(/** @type {string} */ reason, /** @type {string} */ message, name = "", kind = "") {
    this.fatal(reason, message, name, kind);
    return never();
  }

  /** A call while another one is unsettled (W-120). */
  #overlap(/** @type {unknown} */ name) {
    const active = /** @type {Call} */ (this.active).entry.name;
    const called = isText(name) ? `step ${quote(name)}` : "another step";
    return this.#end(
      "step_definition_mismatch",
      `${called} was started while step ${quote(active)} was unsettled: await each step before the next, outside of other steps' effects`,
    );
  }

  /** A finished name gives its recorded outcome, whatever the method (W-094), and settles in a later job (W-099). */
  #replay(/** @type {Entry} */ entry, /** @type {string} */ kind) {
    return new SafePromise((resolve, reject) => {
      const call = new Call(++this.lastId, entry, resolve, reject);
      this.active = call;
      if (entry.deferred && kind !== "sleep") {
        this.send(`{"t":"recall","call":${call.id},"name":${quote(entry.name)}}`);
        return;
      }
      PromiseThen(settled, () => {
        if (this.over || this.active !== call) return;
        this.active = null;
        if (entry.state === "errored") reject(this.#hostError(entry));
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
    const failed = (/** @type {string} */ name, /** @type {string} */ message, line = `${name}: ${message}`) => {
      if (this.over) return;
      entry.failedAttempts = attempt;
      entry.cause = causeOf({ name, message });
      this.log(`attempt ${attempt} of step ${quote(entry.name)} failed: ${line}`);
      this.send(
        `{"t":"do_failed","call":${id},${about},"policy":${policy},"error_name":${quote(name)},"error_message":${quote(message)}}`,
      );
    };
    const threw = (/** @type {unknown} */ error) => {
      if (this.over) return;
      const { name, message } = describeThrown(error);
      failed(name, message, stackOf(error));
    };
    const gave = (/** @type {unknown} */ value) => {
      if (this.over) return;
      const text = value === undefined ? null : encodeDocument(value);
      if (text instanceof DocumentFault) {
        failed(text.kind === "invalid" ? "TypeError" : "document_too_large", `step ${quote(entry.name)} returned no document: ${text.message}`);
      } else if (!this.over) {
        this.send(`{"t":"do_succeeded","call":${id},${about},"has":${text !== null}}`, text);
      }
    };
    let result;
    try {
      result = ReflectApply(effect, undefined, []);
    } catch (error) {
      PromiseThen(settled, () => threw(error));
      return;
    }
    void follow(result, gave, threw);
  }

  /** The engine's answer: settles the call with a result or with the Host Error of that code. */
  settle(/** @type {number} */ id, /** @type {string | null} */ result, /** @type {string} */ code) {
    const call = this.active;
    if (this.over || call === null || call.id !== id) return;
    const { entry } = call;
    this.active = null;
    if (entry.state !== "open") {
      // A result that was asked for again: it is given on, and not held.
      resolveWith(call.resolve, result === null ? undefined : decodeDocument(result));
      return;
    }
    this.open--;
    if (code !== "") {
      entry.state = "errored";
      entry.error = code;
      call.reject(this.#hostError(entry));
      return;
    }
    entry.state = "complete";
    this.#keep(entry, result);
    resolveWith(call.resolve, result === null ? undefined : decodeDocument(result));
  }

  #hostError(/** @type {Entry} */ entry) {
    const { name, error: code } = entry;
    const times = entry.failedAttempts > 1 ? ` ${entry.failedAttempts} times` : "";
    const last = entry.cause === "" ? "" : `${times === "" ? ": " : ", the last time with "}${entry.cause}`;
    const error = new SafeError(
      shorten(code === "step_failed" ? `step ${quote(name)} failed${times}${last}` : `step ${quote(name)} waited in vain: ${code}`),
    );
    const named = /** @type {any} */ ({ __proto__: null, value: code, writable: false, enumerable: false, configurable: false });
    ReflectDefineProperty(error, "name", named);
    WeakMapSet(this.genuine, error, code);
    WeakMapSet(this.failures, error, error.message);
    return error;
  }
}
Object.setPrototypeOf(Steps.prototype, null);

const settled = SafePromise.resolve();
