// Numbers, bytes and times for people.

/** A number with at most three significant digits, or grouped by thousands. */
export function number(value: number | undefined | null): string {
    if (value === undefined || value === null || Number.isNaN(value)) return "–";
    const size = Math.abs(value);
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    if (size >= 100 || Number.isInteger(value)) return value.toFixed(0);
    return value.toFixed(size >= 10 ? 1 : 2);
}

export function bytes(value: number | undefined | null): string {
    if (value === undefined || value === null) return "–";
    const units = ["B", "kB", "MB", "GB", "TB"];
    let at = 0;
    let size = value;
    while (size >= 1000 && at < units.length - 1) {
        size /= 1000;
        at += 1;
    }
    return `${size >= 100 || at === 0 ? size.toFixed(0) : size.toFixed(1)} ${units[at]}`;
}

export function seconds(value: number | undefined | null): string {
    if (value === undefined || value === null) return "–";
    if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
    if (value < 1) return `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms`;
    return `${value.toFixed(value < 10 ? 2 : 1)} s`;
}

/** A distance from the reference. */
export function distance(value: number | undefined | null): string {
    if (value === undefined) return "–";
    if (value === null) return "not finite";
    return value === 0 ? "0" : value.toExponential(1);
}

/** A text of at most `most` characters. */
export function shortened(text: string, most: number): string {
    return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
