//! Points in space, in kilometres from the centre of the Earth.
//!
//! Only operations with exact IEEE 754 rounding are used here, and `libm` for angles, so that every
//! machine computes the same bits.

use std::ops::{Add, Mul, Sub};

/// A point or a direction. The z axis runs through the north pole, the x axis through longitude 0 in
/// Earth-fixed coordinates.
///
/// Unit: km, or 1 for a direction.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Vector {
    /// Towards longitude 0 on the equator.
    pub x: f64,
    /// Towards longitude 90° east on the equator.
    pub y: f64,
    /// Towards the north pole.
    pub z: f64,
}

impl Vector {
    /// The vector of these components.
    pub const fn new(x: f64, y: f64, z: f64) -> Self {
        Self { x, y, z }
    }

    /// The scalar product.
    pub fn dot(self, other: Self) -> f64 {
        self.x * other.x + self.y * other.y + self.z * other.z
    }

    /// The distance from the origin.
    pub fn length(self) -> f64 {
        self.dot(self).sqrt()
    }

    /// The distance between two points.
    pub fn distance(self, other: Self) -> f64 {
        (self - other).length()
    }

    /// This vector turned eastwards about the z axis by an angle with this sine and cosine.
    pub fn turned(self, (sin, cos): (f64, f64)) -> Self {
        Self::new(self.x * cos - self.y * sin, self.x * sin + self.y * cos, self.z)
    }

    /// The smallest distance from the origin to the straight line between two points.
    pub fn closest_approach(self, other: Self) -> f64 {
        let way = other - self;
        let length_squared = way.dot(way);
        if length_squared == 0.0 {
            return self.length();
        }
        let share = (-self.dot(way) / length_squared).clamp(0.0, 1.0);
        (self + way * share).length()
    }
}

impl Add for Vector {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self::new(self.x + other.x, self.y + other.y, self.z + other.z)
    }
}

impl Sub for Vector {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self::new(self.x - other.x, self.y - other.y, self.z - other.z)
    }
}

impl Mul<f64> for Vector {
    type Output = Self;
    fn mul(self, factor: f64) -> Self {
        Self::new(self.x * factor, self.y * factor, self.z * factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_passes_the_origin_between_its_ends_or_at_one_of_them() {
        let west = Vector::new(-3.0, 4.0, 0.0);
        assert_eq!(west.closest_approach(Vector::new(3.0, 4.0, 0.0)), 4.0);
        assert_eq!(west.closest_approach(Vector::new(-9.0, 12.0, 0.0)), 5.0);
        assert_eq!(west.closest_approach(west), 5.0);
    }
}
