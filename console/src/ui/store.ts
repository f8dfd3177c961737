// A value that components share and subscribe to.
import { useEffect, useState } from "preact/hooks";

export class Store<T> {
    #value: T;
    #listeners = new Set<(value: T) => void>();

    constructor(value: T) {
        this.#value = value;
    }

    get(): T {
        return this.#value;
    }

    set(value: T): void {
        if (Object.is(value, this.#value)) return;
        this.#value = value;
        for (const listener of [...this.#listeners]) listener(value);
    }

    subscribe(listener: (value: T) => void): () => void {
        this.#listeners.add(listener);
        return () => this.#listeners.delete(listener);
    }
}

/** The value of a store; the component renders again when it changes. */
export function useStore<T>(store: Store<T>): T {
    const [value, setValue] = useState(() => store.get());
    useEffect(() => {
        // It may have changed between the first render and this effect.
        setValue(() => store.get());
        return store.subscribe((next) => setValue(() => next));
    }, [store]);
    return value;
}
