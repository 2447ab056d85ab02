/**
 * Every builtin that trusted code uses after tenant code may have run, captured while the realm is still untouched (W-051).
 *
 * Rule of this folder: code that can run next to a tenant calls no method by name on a builtin object (`map.get(k)`), because the
 * tenant may have replaced `Map.prototype.get`; it calls the captured function (`MapGet(map, k)`).
 */

const { bind, call } = Function.prototype;

/** @type {(fn: Function) => (self: any, ...args: any[]) => any} */
export const uncurryThis = bind.bind(call);

/** What an accessor property gives, for any object. @returns {(self: any) => any} */
export const getterOf = (/** @type {object} */ owner, /** @type {PropertyKey} */ key) =>
  uncurryThis(/** @type {any} */ (Object.getOwnPropertyDescriptor(owner, key)).get);

export const {
  apply: ReflectApply,
  construct: ReflectConstruct,
  getOwnPropertyDescriptor: ReflectGetOwnPropertyDescriptor,
  getPrototypeOf: ReflectGetPrototypeOf,
  isExtensible: ReflectIsExtensible,
  ownKeys: ReflectOwnKeys,
  defineProperty: ReflectDefineProperty,
  deleteProperty: ReflectDeleteProperty,
} = Reflect;
export const { freeze: ObjectFreeze, is: ObjectIs, hasOwn: ObjectHasOwn, setPrototypeOf: ObjectSetPrototypeOf } = Object;
export const { isArray: ArrayIsArray } = Array;
export const { isInteger: NumberIsInteger, isFinite: NumberIsFinite } = Number;
const { stringify } = JSON;
export const { parse: JSONParse } = JSON;

export const ObjectPrototype = Object.prototype;
export const ArrayPrototype = Array.prototype;
/**
 * A list of the host's own: it inherits nothing, so that storing into it meets no setter `"0"` of a tenant's. Only such lists are grown
 * with `ArrayPush`. @template T @returns {T[]}
 */
export const newList = () => ObjectSetPrototypeOf([], null);
export const ArrayPush = (/** @type {any[]} */ list, /** @type {any} */ value) => {
  list[list.length] = value;
};
export const ArrayPop = uncurryThis(Array.prototype.pop);
export const ArraySort = uncurryThis(Array.prototype.sort);
export const ArrayJoin = uncurryThis(Array.prototype.join);
export const ArrayShift = uncurryThis(Array.prototype.shift);

export const StringIsWellFormed = uncurryThis(String.prototype.isWellFormed);
export const StringToWellFormed = uncurryThis(String.prototype.toWellFormed);
export const StringCharCodeAt = uncurryThis(String.prototype.charCodeAt);
export const StringSlice = uncurryThis(String.prototype.slice);
export const StringSplit = uncurryThis(String.prototype.split);
export const StringStartsWith = uncurryThis(String.prototype.startsWith);
export const StringEndsWith = uncurryThis(String.prototype.endsWith);
export const StringIncludes = uncurryThis(String.prototype.includes);
export const StringLastIndexOf = uncurryThis(String.prototype.lastIndexOf);

export const SafeMap = Map;
export const SafeSet = Set;
export const SafeWeakMap = WeakMap;
export const MapGet = uncurryThis(Map.prototype.get);
export const MapSet = uncurryThis(Map.prototype.set);
export const MapDelete = uncurryThis(Map.prototype.delete);
export const MapClear = uncurryThis(Map.prototype.clear);
export const MapForEach = uncurryThis(Map.prototype.forEach);
export const SetAdd = uncurryThis(Set.prototype.add);
export const SetHas = uncurryThis(Set.prototype.has);
export const SetDelete = uncurryThis(Set.prototype.delete);
export const WeakMapGet = uncurryThis(WeakMap.prototype.get);
export const WeakMapSet = uncurryThis(WeakMap.prototype.set);

export const SafePromise = Promise;
const then = uncurryThis(Promise.prototype.then);
// `then` and `await` ask a Promise for its class. Nobody may answer in the engine's place.
Object.defineProperty(Promise.prototype, "constructor", { value: Promise, writable: false, enumerable: false, configurable: false });
Object.defineProperty(Promise, Symbol.species, { configurable: false });

/** What is done when trusted code throws where nobody can catch it: the thread cannot go on (set by the thread). */
export const host = { giveUp: (/** @type {unknown} */ _error) => {} };

const guarded = (/** @type {((value: any) => unknown) | undefined} */ callback) =>
  callback === undefined
    ? undefined
    : (/** @type {any} */ value) => {
        try {
          return callback(value);
        } catch (error) {
          return host.giveUp(error);
        }
      };

/** `then` of a Promise that the host or the engine made. */
export const PromiseThen = (
  /** @type {Promise<any>} */ promise,
  /** @type {(value: any) => unknown} */ done,
  /** @type {((error: any) => unknown) | undefined} */ failed = undefined,
) => then(promise, guarded(done), guarded(failed));

/**
 * Waits for `value` as `await` does: a native Promise is not asked for a `then` that a tenant may have replaced.
 * @param {unknown} value @param {(value: any) => void} done @param {(error: unknown) => void} failed
 */
export async function follow(value, done, failed) {
  let outcome;
  try {
    outcome = await value;
  } catch (error) {
    guarded(failed)?.(error);
    return;
  }
  guarded(done)?.(outcome);
}

export const SafeError = Error;
export const SafeTypeError = TypeError;

const TypedArray = Object.getPrototypeOf(Uint8Array);
export const SafeUint8Array = Uint8Array;
export const TypedArraySet = uncurryThis(TypedArray.prototype.set);
export const TypedArrayByteLength = getterOf(TypedArray.prototype, "byteLength");
export const TypedArrayBuffer = getterOf(TypedArray.prototype, "buffer");
export const TypedArrayByteOffset = getterOf(TypedArray.prototype, "byteOffset");
export const TypedArrayTag = getterOf(TypedArray.prototype, Symbol.toStringTag);

export const RegExpExec = uncurryThis(RegExp.prototype.exec);
export const SymbolDispose = Symbol.dispose;

/** A JSON string literal of a primitive string: no `toJSON` is ever looked up for primitives. A lone surrogate, which JSON cannot carry, becomes U+FFFD. */
export const quote = (/** @type {string} */ text) => stringify(StringToWellFormed(text));

/** An Error as Bindings and modules reject with it (F-12): its own, read-only, non-enumerable `name` is the code. */
export function namedError(/** @type {string} */ name, /** @type {string} */ message) {
  const error = name === "TypeError" ? new SafeTypeError(message) : new SafeError(message);
  if (name !== "TypeError") {
    ReflectDefineProperty(error, "name", {
      // @ts-ignore a null prototype keeps a polluted Object.prototype out of the descriptor
      __proto__: null,
      value: name,
      writable: false,
      enumerable: false,
      configurable: false,
    });
  }
  return error;
}
