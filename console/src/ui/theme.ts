// Light or dark, by the system's preference unless the user chose one.
import { Store } from "./store";

const STORED_THEME = "sconce-theme";
export const THEMES = ["auto", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

const stored = THEMES.find((theme) => theme === localStorage.getItem(STORED_THEME));
export const theme = new Store<Theme>(stored ?? "auto");

function apply(chosen: Theme): void {
    document.documentElement.style.colorScheme = chosen === "auto" ? "light dark" : chosen;
}

apply(theme.get());
theme.subscribe((chosen) => {
    if (chosen === "auto") localStorage.removeItem(STORED_THEME);
    else localStorage.setItem(STORED_THEME, chosen);
    apply(chosen);
});
