// A button that copies text.
import { useEffect, useState } from "preact/hooks";

export function CopyButton({ text, label }: { text: string; label: string }) {
    const [outcome, setOutcome] = useState("");
    useEffect(() => {
        if (!outcome) return undefined;
        const timer = setTimeout(() => setOutcome(""), 2000);
        return () => clearTimeout(timer);
    }, [outcome]);
    const copy = async () => {
        try {
            await navigator.clipboard.writeText(text);
            setOutcome("Copied");
        } catch {
            // Without TLS, browsers offer the clipboard on loopback only.
            setOutcome("Not allowed");
        }
    };
    return (
        <button type="button" class="quiet" onClick={copy} aria-label={outcome ? undefined : label}>
            <span aria-live="polite">{outcome || "Copy"}</span>
        </button>
    );
}
