// Hooks that pages share.
import { useEffect, useRef, useState } from "preact/hooks";

/** Calls `work` now and then every `milliseconds` after it finished, while `active` and the tab is visible. */
export function usePolling(work: () => Promise<void>, milliseconds: number, active = true): void {
    const latest = useRef(work);
    latest.current = work;
    useEffect(() => {
        if (!active) return undefined;
        let timer: ReturnType<typeof setTimeout> | undefined;
        let stopped = false;
        const tick = async () => {
            if (!document.hidden) await latest.current();
            if (!stopped) timer = setTimeout(tick, milliseconds);
        };
        void tick();
        return () => {
            stopped = true;
            clearTimeout(timer);
        };
    }, [active, milliseconds]);
}

/** A state that is kept in the session's storage. */
export function useStored<T>(name: string, initial: T): [T, (value: T) => void] {
    const [value, setValue] = useState<T>(() => {
        try {
            const stored = sessionStorage.getItem(name);
            return stored === null ? initial : JSON.parse(stored);
        } catch {
            return initial;
        }
    });
    const store = (next: T) => {
        setValue(() => next);
        try {
            sessionStorage.setItem(name, JSON.stringify(next));
        } catch {
            // The storage is full: the value lives as long as the page.
        }
    };
    return [value, store];
}
