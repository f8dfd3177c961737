//! A straight line through recent measurements.

/// Factor of the weights of all earlier measurements at a new one.
const DECAY: f64 = 0.9;
/// Variance of `x`, relative to its mean square, from which on a slope is known.
const MIN_VARIANCE: f64 = 1e-3;

/// Weighted least squares of y = offset + slope · x, in which old measurements fade. Offset and slope are not negative.
#[derive(Debug, Default)]
pub(super) struct LineFit {
    weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
    /// The last offset relative to the slope: it is kept while all measurements have the same `x`.
    ratio: f64,
}

impl LineFit {
    /// Records a measurement.
    pub(super) fn observe(&mut self, x: f64, y: f64) {
        self.weight = DECAY * self.weight + 1.0;
        self.x = DECAY * self.x + x;
        self.y = DECAY * self.y + y;
        self.xx = DECAY * self.xx + x * x;
        self.xy = DECAY * self.xy + x * y;
        let (x, xx) = (self.x / self.weight, self.xx / self.weight);
        let variance = xx - x * x;
        if variance > MIN_VARIANCE * xx {
            let slope = (self.xy / self.weight - x * self.y / self.weight) / variance;
            // A line through the origin is the steepest one. While measurements drift, the slope would be anything: it is a
            // quarter of the steepest at least.
            let steepest = self.y / self.weight / x;
            let slope = slope.clamp(steepest / 4.0, steepest);
            self.ratio = (self.y / self.weight - slope * x) / slope.max(f64::MIN_POSITIVE);
        }
    }

    /// Offset and slope, once there is a measurement.
    pub(super) fn line(&self) -> Option<(f64, f64)> {
        if self.weight == 0.0 || self.x == 0.0 {
            return None;
        }
        let slope = self.y / (self.x + self.ratio * self.weight);
        Some((self.ratio * slope, slope))
    }

    /// The value of the line at `x`.
    pub(super) fn at(&self, x: f64) -> Option<f64> {
        self.line().map(|(offset, slope)| offset + slope * x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(got: Option<(f64, f64)>, wanted: (f64, f64)) {
        let (offset, slope) = got.expect("there are measurements");
        assert!((offset - wanted.0).abs() < 1e-6 && (slope - wanted.1).abs() < 1e-6, "{offset} {slope}");
    }

    #[test]
    fn the_line_goes_through_the_measurements() {
        let mut fit = LineFit::default();
        assert_eq!(fit.line(), None);
        fit.observe(100.0, 0.2);
        near(fit.line(), (0.0, 0.002));
        fit.observe(200.0, 0.3);
        near(fit.line(), (0.1, 0.001));
        assert!(fit.at(300.0).is_some_and(|y| (y - 0.4).abs() < 1e-6));
        // Measurements at one place keep the ratio of offset and slope.
        for _ in 0..200 {
            fit.observe(100.0, 0.2);
        }
        near(fit.line(), (0.1, 0.001));
    }

    #[test]
    fn offset_and_slope_are_not_negative() {
        let mut fit = LineFit::default();
        for (x, y) in [(1.0, 1.0), (2.0, 4.0), (3.0, 9.0), (4.0, 16.0)] {
            fit.observe(x, y);
        }
        assert!(fit.line().is_some_and(|(offset, slope)| offset.abs() < 1e-9 && slope > 0.0));
        let mut fit = LineFit::default();
        for (x, y) in [(1.0, 4.0), (2.0, 3.0), (3.0, 2.0)] {
            fit.observe(x, y);
        }
        assert!(fit.line().is_some_and(|(offset, slope)| offset > 0.0 && slope > 0.0));
        let mut zero = LineFit::default();
        zero.observe(1.0, 0.0);
        zero.observe(2.0, 0.0);
        assert!(zero.line().is_some_and(|(offset, slope)| offset == 0.0 && slope == 0.0));
    }
}
