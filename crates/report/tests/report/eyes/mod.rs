//! Colours as seen with colour vision deficiencies, and in grey.
//!
//! The matrices are those of Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of
//! Color Vision Deficiency" (IEEE TVCG 15(6), 2009), table 1 at severity 1.0, for linear RGB.

/// A kind of eye, or of paper, by its transformation of linear red, green and blue.
pub struct Eye {
    pub name: &'static str,
    matrix: [[f64; 3]; 3],
}

const LUMINANCE: [f64; 3] = [0.2126, 0.7152, 0.0722];

/// Normal vision.
pub const ALL: Eye =
    Eye { name: "normal", matrix: [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]] };
/// A page printed without colours.
pub const GREY: Eye = Eye { name: "grey", matrix: [LUMINANCE; 3] };
/// Vision without the long, the middle or the short cones.
pub const DICHROMATS: [Eye; 3] = [
    Eye {
        name: "protanopia",
        matrix: [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ],
    },
    Eye {
        name: "deuteranopia",
        matrix: [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ],
    },
    Eye {
        name: "tritanopia",
        matrix: [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ],
    },
];

impl Eye {
    /// The distance between two colours such as `#0072b2`: ΔE*ab of CIE 1976 between how they are
    /// seen. About 2 is just noticeable side by side.
    pub fn apart(&self, one: &str, other: &str) -> f64 {
        let (one, other) = (self.lab(one), self.lab(other));
        one.iter().zip(other).map(|(one, other)| (one - other).powi(2)).sum::<f64>().sqrt()
    }

    /// `colour` as it is seen, in CIE L*a*b* under D65.
    fn lab(&self, colour: &str) -> [f64; 3] {
        let linear = linear(colour);
        let seen = self.matrix.map(|row| dot(row, linear).clamp(0.0, 1.0));
        let x = dot([0.4124564, 0.3575761, 0.1804375], seen) / 0.95047;
        let y = dot([0.2126729, 0.7151522, 0.0721750], seen);
        let z = dot([0.0193339, 0.1191920, 0.9503041], seen) / 1.08883;
        let [x, y, z] = [x, y, z].map(|it| match it > 216.0 / 24_389.0 {
            true => it.cbrt(),
            false => (24_389.0 / 27.0 * it + 16.0) / 116.0,
        });
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }
}

/// Red, green and blue of sRGB without its gamma.
fn linear(colour: &str) -> [f64; 3] {
    [1, 3, 5].map(|at| {
        let byte = u8::from_str_radix(&colour[at..at + 2], 16).expect("a colour");
        let value = f64::from(byte) / 255.0;
        if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    })
}

fn dot(one: [f64; 3], other: [f64; 3]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}
