/** `env.NAME` of a workflow Binding (contract 3.4): create, get, and the instance object with its event subscription (section 4). */

import {
  ArrayIsArray,
  ArrayPush,
  ArrayShift,
  NumberIsInteger,
  ObjectFreeze,
  ObjectHasOwn,
  PromiseThen,
  ReflectDefineProperty,
  ReflectGetOwnPropertyDescriptor,
  SafePromise,
  SafeSet,
  SafeTypeError,
  SetHas,
  SymbolDispose,
  namedError,
  newList,
  quote,
} from "../intrinsics.mjs";
import { DocumentFault, decodeDocument, encodeDocument } from "../documents.mjs";
import { isText, optionsFault, readOptions, resolveWith } from "../step.mjs";

const EVENT_TYPES = new SafeSet([
  "workflow_queued", "workflow_started", "workflow_running", "workflow_paused", "workflow_waiting_for_pause", "workflow_waiting",
  "workflow_completed", "workflow_errored", "workflow_terminated", "step_started", "step_completed", "step_errored",
  "attempt_started", "attempt_completed", "attempt_errored", "sleep_started", "sleep_completed", "wait_started", "wait_completed",
  "wait_timed_out", "rollback_started", "rollback_step_started", "rollback_step_completed", "rollback_step_errored",
  "rollback_attempt_started", "rollback_attempt_completed", "rollback_attempt_errored", "rollback_completed", "rollback_errored",
]); // prettier-ignore

const CREATE_KEYS = ObjectFreeze(["id", "params"]);
const EVENT_KEYS = ObjectFreeze(["type", "payload"]);
const SUBSCRIBE_KEYS = ObjectFreeze(["cursor", "filter"]);
const MAX_FILTER = 1_024;

const reject = (/** @type {unknown} */ error) => new SafePromise((_, refuse) => refuse(error));
const badArgument = (/** @type {string} */ message) => reject(new SafeTypeError(message));

/**
 * @param {import("../environment.mjs").Environment} env
 * @param {string} name the key of `env`
 */
export function workflowBinding(env, name) {
  return ObjectFreeze({
    create: (/** @type {unknown} */ input) => {
      const given = input === undefined ? readOptions({ __proto__: null }, CREATE_KEYS) : readOptions(input, CREATE_KEYS);
      if (given === null) return badArgument(`create takes {id?, params?}; ${optionsFault(input, CREATE_KEYS)}`);
      const { id, params } = /** @type {any} */ (given);
      if (id !== undefined && !isText(id)) return badArgument("id is a string of 1 to 256 characters without lone surrogates");
      const body = params === undefined ? null : encodeDocument(params);
      if (body instanceof DocumentFault) {
        return reject(namedError(body.kind === "invalid" ? "invalid_params" : "document_too_large", `params: ${body.message}`));
      }
      const args = id === undefined ? "{}" : `{"id":${quote(id)}}`;
      return env.call(name, "create", args, body, (answer) => instance(env, name, answer.value.id), true);
    },
    get: (/** @type {unknown} */ id) => {
      if (!isText(id)) return badArgument("id is a string of 1 to 256 characters without lone surrogates");
      return env.call(name, "get", `{"id":${quote(id)}}`, null, () => instance(env, name, id), true);
    },
  });
}

/** Not frozen yet: `Environment.call` does that once it has been handed out. */
function instance(
  /** @type {import("../environment.mjs").Environment} */ env,
  /** @type {string} */ name,
  /** @type {string} */ id,
) {
  const self = `"id":${quote(id)}`;
  return {
    id,
    status: () => env.call(name, "status", `{${self}}`, null, readStatus),
    sendEvent: (/** @type {unknown} */ input) => {
      const given = /** @type {any} */ (readOptions(input, EVENT_KEYS));
      if (given === null) return badArgument(`sendEvent takes {type, payload?}; ${optionsFault(input, EVENT_KEYS)}`);
      if (!isText(given.type)) return badArgument("type is a string of 1 to 256 characters without lone surrogates");
      const body = given.payload === undefined ? null : encodeDocument(given.payload);
      if (body instanceof DocumentFault) {
        return body.kind === "invalid"
          ? badArgument(`payload: ${body.message}`)
          : reject(namedError("document_too_large", `payload: ${body.message}`));
      }
      const args = `{${self},"type":${quote(given.type)},"hasPayload":${body !== null}}`;
      return env.call(name, "sendEvent", args, body, () => undefined);
    },
    terminate: () => env.call(name, "terminate", `{${self}}`, null, () => undefined),
    subscribe: (/** @type {unknown} */ options) => {
      const wanted = readSubscribe(options);
      if (wanted === null) return badArgument("subscribe takes {cursor?: whole number from 0, filter?: event types}");
      return env.call(name, "subscribe", `{${self},${wanted}}`, null, (answer) => subscription(env, name, answer.value.subscription), true);
    },
  };
}

/** A fresh status object with exactly the keys of W-011. */
function readStatus(/** @type {import("../environment.mjs").Answer} */ answer) {
  const { value, body } = answer;
  /** @type {any} */
  const out = { status: value.status };
  if (body !== null) define(out, "output", decodeDocument(body));
  if (ObjectHasOwn(value, "error") && value.error !== null) {
    const { error } = value;
    const shown = { reason: error.reason };
    if (ObjectHasOwn(error, "message") && typeof error.message === "string") define(shown, "message", error.message);
    define(out, "error", shown);
  }
  return out;
}

const define = (/** @type {object} */ owner, /** @type {string} */ key, /** @type {unknown} */ value) =>
  ReflectDefineProperty(owner, key, /** @type {any} */ ({
    __proto__: null, value, writable: true, enumerable: true, configurable: true,
  })); // prettier-ignore

/** The JSON members `"cursor":…` and `"filter":…` (S-09), or null. */
function readSubscribe(/** @type {unknown} */ options) {
  if (options === undefined) return '"cursor":0';
  const given = /** @type {any} */ (readOptions(options, SUBSCRIBE_KEYS));
  if (given === null) return null;
  const { cursor = 0, filter } = given;
  if (!NumberIsInteger(cursor) || cursor < 0 || cursor > 9_007_199_254_740_991) return null;
  const text = `"cursor":${cursor}`;
  if (filter === undefined) return text;
  try {
    if (!ArrayIsArray(filter)) return null;
    const length = /** @type {any} */ (ReflectGetOwnPropertyDescriptor(filter, "length")).value;
    if (length > MAX_FILTER) return null;
    let names = "";
    for (let i = 0; i < length; i++) {
      const found = ReflectGetOwnPropertyDescriptor(filter, i);
      if (found === undefined || !ObjectHasOwn(found, "value") || !SetHas(EVENT_TYPES, found.value)) return null;
      names += (i > 0 ? "," : "") + quote(/** @type {string} */ (found.value));
    }
    return `${text},"filter":[${names}]`;
  } catch {
    return null; // a Proxy trap threw
  }
}

/** Events in call order, one `next` at a time on the wire (S-10); disposal answers what is pending (S-11). */
function subscription(
  /** @type {import("../environment.mjs").Environment} */ env,
  /** @type {string} */ name,
  /** @type {string} */ key,
) {
  const args = `{"subscription":${quote(key)}}`;
  /** @type {{ resolve: (value: any) => void, reject: (error: unknown) => void }[]} */
  const waiting = newList();
  let disposed = false;
  let ended = false;
  const done = () => ({ done: true, value: undefined });
  const pump = () => {
    PromiseThen(
      env.call(name, "next", args, null, (answer) => ({ isDone: answer.value.done === true, body: answer.body })),
      (/** @type {{ isDone: boolean, body: string | null }} */ { isDone, body }) => {
        if (disposed) return;
        ended = ended || isDone;
        resolveWith(ArrayShift(waiting).resolve, isDone || body === null ? done() : { done: false, value: decodeDocument(body) });
        if (ended) finish();
        else if (waiting.length > 0) pump();
      },
      (/** @type {unknown} */ error) => {
        if (disposed) return;
        ArrayShift(waiting).reject(error);
        if (waiting.length > 0) pump();
      },
    );
  };
  const finish = () => {
    while (waiting.length > 0) resolveWith(ArrayShift(waiting).resolve, done());
  };
  return {
    next: () =>
      new SafePromise((resolve, refuse) => {
        if (disposed || ended) {
          resolveWith(resolve, done());
          return;
        }
        ArrayPush(waiting, { resolve, reject: refuse });
        if (waiting.length === 1) pump();
      }),
    [SymbolDispose]: () => {
      if (disposed) return;
      disposed = true;
      finish();
      PromiseThen(env.call(name, "dispose", args, null, () => undefined), () => {}, () => {});
    },
  };
}
