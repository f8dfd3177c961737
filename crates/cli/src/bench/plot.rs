//! Draws a figure of four charts with a common legend, as SVG or PNG.

use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, register_font};

use crate::output_file::OutputFile;

const SIZE: (u32, u32) = (1280, 980);
const HEAD: u32 = 48;
const LEGEND_ROW: i32 = 24;
const LEGEND_WIDTH: i32 = 426;
const LEGEND_COLUMNS: i32 = 3;
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(40, 40, 40);
const GREY: RGBColor = RGBColor(120, 120, 120);
/// The color-blind-safe palette of Okabe and Ito.
pub(super) const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

/// The output file, with the format of its extension.
pub(super) struct Plot {
    path: PathBuf,
    file: OutputFile,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Svg,
    Png,
}

/// Four charts and their legend.
pub(super) struct Figure {
    pub(super) title: String,
    pub(super) legend: Vec<(String, RGBColor)>,
    pub(super) panels: [Panel; 4],
}

/// The line of one runner.
pub(super) struct Line {
    pub(super) color: RGBColor,
    pub(super) points: Vec<(f64, f64)>,
}

/// One chart.
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) x_label: &'static str,
    pub(super) y_label: &'static str,
    pub(super) lines: Vec<Line>,
    /// Gray lines, each with a label at its right end.
    pub(super) bounds: Vec<(Vec<(f64, f64)>, String)>,
}

impl Plot {
    pub(super) fn at(path: &Path) -> anyhow::Result<Plot> {
        let kind = match path.extension().and_then(|extension| extension.to_str()) {
            Some("svg") => Kind::Svg,
            Some("png") => Kind::Png,
            Some(_) | None => {
                bail!("unsupported plot format, expected `.svg` or `.png`: `{}`", path.display())
            }
        };
        // Report an unwritable file before the long work starts.
        let file = OutputFile::create(path)?;
        Ok(Plot { path: path.to_owned(), file, kind })
    }

    pub(super) fn draw(self, figure: &Figure) -> anyhow::Result<()> {
        register_font(FONT, FontStyle::Normal, dejavu::sans::regular())
            .map_err(|_| anyhow!("could not load the font"))?;
        let path = self.file.path();
        let drawn = match self.kind {
            Kind::Svg => {
                let area = SVGBackend::new(&path, SIZE).into_drawing_area();
                draw_all(&area, figure).map_err(anyhow::Error::from)
            }
            Kind::Png => {
                let area = BitMapBackend::new(&path, SIZE).into_drawing_area();
                draw_all(&area, figure).map_err(anyhow::Error::from)
            }
        };
        drawn.with_context(|| format!("could not draw: `{}`", self.path.display()))?;
        self.file.commit()
    }
}

type Area<B> = DrawingArea<B, Shift>;
type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

fn draw_all<B: DrawingBackend>(area: &Area<B>, figure: &Figure) -> Drawn<B> {
    area.fill(&WHITE)?;
    let rows = figure.legend.chunks(LEGEND_COLUMNS as usize).map(|_| LEGEND_ROW).sum::<i32>();
    let (head, rest) = area.split_vertically(HEAD);
    let (legend_area, panels) = rest.split_vertically(rows + 8);
    head.draw(&Text::new(figure.title.clone(), (20, 16), (FONT, 22).into_font().color(&INK)))?;
    draw_legend(&legend_area, &figure.legend)?;
    for (panel, area) in figure.panels.iter().zip(panels.split_evenly((2, 2))) {
        chart(&area, panel)?;
    }
    area.present()
}

fn draw_legend<B: DrawingBackend>(area: &Area<B>, names: &[(String, RGBColor)]) -> Drawn<B> {
    let places = (0..).flat_map(|row| (0..LEGEND_COLUMNS).map(move |column| (row, column)));
    for ((row, column), (name, color)) in places.zip(names) {
        let (x, y) = (20 + column * LEGEND_WIDTH, 12 + row * LEGEND_ROW);
        area.draw(&PathElement::new(vec![(x, y), (x + 30, y)], color.stroke_width(3)))?;
        area.draw(&Circle::new((x + 15, y), 4, color.filled()))?;
        area.draw(&Text::new(name.clone(), (x + 40, y - 7), (FONT, 15).into_font().color(&INK)))?;
    }
    Ok(())
}

fn chart<B: DrawingBackend>(area: &Area<B>, panel: &Panel) -> Drawn<B> {
    let bounds = panel.bounds.iter().flat_map(|(points, _)| points);
    let all: Vec<(f64, f64)> =
        panel.lines.iter().flat_map(|line| &line.points).chain(bounds).copied().collect();
    let (across, up) = (range(all.iter().map(|point| point.0)), range(all.iter().map(|point| point.1)));
    // Space above for the labels of the bounds.
    let up = up.start..up.end * 1.25;
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, (FONT, 17).into_font().color(&INK))
        .margin(12)
        .margin_right(24)
        .x_label_area_size(46)
        .y_label_area_size(66)
        .build_cartesian_2d(
            across.clone().log_scale().with_key_points(doublings(&across)),
            up.clone().log_scale().with_key_points(ticks(&up)),
        )?;
    chart
        .configure_mesh()
        .x_desc(panel.x_label)
        .y_desc(panel.y_label)
        .x_label_formatter(&|x| number(*x))
        .y_label_formatter(&|y| number(*y))
        .light_line_style(TRANSPARENT)
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.6))
        .label_style((FONT, 13).into_font().color(&INK))
        .axis_desc_style((FONT, 14).into_font().color(&INK))
        .draw()?;
    for (points, words) in &panel.bounds {
        chart.draw_series(LineSeries::new(points.iter().copied(), GREY.stroke_width(2)))?;
        if let Some(&(x, y)) = points.last() {
            let place = Pos::new(HPos::Right, VPos::Bottom);
            let place = (FONT, 13).into_font().color(&GREY).pos(place);
            chart.draw_series([Text::new(words.clone(), (x, y * 1.03), place)])?;
        }
    }
    for line in &panel.lines {
        chart.draw_series(LineSeries::new(line.points.iter().copied(), line.color.stroke_width(2)))?;
        chart.draw_series(line.points.iter().map(|point| Circle::new(*point, 3, line.color.filled())))?;
    }
    Ok(())
}

/// The range of the positive values, never empty.
pub(super) fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (least, most) = values
        .filter(|value| value.is_finite() && *value > 0.0)
        .fold((f64::INFINITY, 0.0_f64), |(least, most), value| (least.min(value), most.max(value)));
    if least < most { least * 0.9..most * 1.1 } else { 0.5..2.0 }
}

/// Round tick values in a range.
fn ticks(range: &Range<f64>) -> Vec<f64> {
    let wide = range.end / range.start > 30.0;
    let steps: &[f64] = if wide { &[1.0, 2.0, 5.0] } else { &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0] };
    let round = (-3..12).flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
    round.filter(|tick| range.contains(tick)).collect()
}

/// Powers of two in a range.
fn doublings(range: &Range<f64>) -> Vec<f64> {
    (-10..40).map(|power| 2_f64.powi(power)).filter(|tick| range.contains(tick)).collect()
}

/// `950`, `12k`, `1.5M`.
pub(super) fn number(value: f64) -> String {
    let short = |value: f64| {
        let text = format!("{value:.1}");
        text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
    };
    match value {
        value if value >= 1e6 => format!("{}M", short(value / 1e6)),
        value if value >= 1e4 => format!("{}k", short(value / 1e3)),
        value => short(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_numbers_and_are_never_empty() {
        assert_eq!(ticks(&(0.9..90.0)), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!(range([].into_iter()), 0.5..2.0);
        assert_eq!(range([f64::NAN, 0.0, 3.0].into_iter()), 0.5..2.0);
        assert_eq!([0.5, 128.0, 12_000.0, 1.5e6].map(number), ["0.5", "128", "12k", "1.5M"]);
    }
}
