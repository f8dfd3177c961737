// The color scale of heat maps.

/** Stops of a scale that grows in lightness, so that it reads without color vision. */
const STOPS: [number, number, number][] = [
    [13, 8, 41],
    [66, 10, 104],
    [147, 38, 103],
    [221, 81, 58],
    [252, 165, 10],
    [252, 255, 164],
];

/** The color of a value between 0 and 1. */
export function heat(value: number): [number, number, number] {
    const place = Math.min(1, Math.max(0, value)) * (STOPS.length - 1);
    const at = Math.min(Math.floor(place), STOPS.length - 2);
    const [low, high] = [STOPS[at]!, STOPS[at + 1]!];
    const mix = (channel: 0 | 1 | 2) => Math.round(low[channel] + (high[channel] - low[channel]) * (place - at));
    return [mix(0), mix(1), mix(2)];
}

/** A color for text on the color of a value. */
export function inkOn(value: number): string {
    return value > 0.62 ? "#1d1b19" : "#fff";
}
