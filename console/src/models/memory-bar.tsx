// Memory of the server's process against its limit.
import type { ModelReport, Report } from "../server/report";
import { bytes } from "../ui/format";

export function MemoryBar({ memory, models }: { memory: Report["memory"]; models: ModelReport[] }) {
    const used = (memory.resident ?? 0) + memory.provers;
    const most = memory.limit ?? Math.max(used, 1);
    const loaded = models.filter(({ serving, memory: taken }) => serving && taken);
    const parts = loaded.map(({ model, memory: taken }) => ({ name: model, size: taken?.measured.resident ?? 0 }));
    const known = parts.reduce((all, { size }) => all + size, 0);
    const others = [
        { name: "process", size: Math.max(0, (memory.resident ?? 0) - known) },
        { name: "provers", size: memory.provers },
    ];
    const shown = [...parts, ...others].filter(({ size }) => size > 0);
    const text = memory.limit ? `${bytes(used)} of the limit of ${bytes(memory.limit)}` : `${bytes(used)}; no limit is set`;
    return (
        <section class="card memory" aria-label="Memory">
            <h2>Memory</h2>
            <p>{text}</p>
            <div class="stack" role="img" aria-label={`Memory: ${text}`}>
                {shown.map(({ name, size }, at) => (
                    <span key={name} class={`series-${(at % 8) + 1}`} style={{ width: `${Math.min(100, (size / most) * 100)}%` }} />
                ))}
            </div>
            <ul class="legend">
                {shown.map(({ name, size }, at) => (
                    <li key={name} class={`series-${(at % 8) + 1}`}>
                        {name} {bytes(size)}
                    </li>
                ))}
            </ul>
        </section>
    );
}
