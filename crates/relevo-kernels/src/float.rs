//! The two precisions that kernels compute in.

use std::fmt::{Debug, Display};
use std::ops::{Add, AddAssign, BitOr, Div, Mul, Neg, Sub};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// `f32` or `f64`: a kernel computes in the precision of its slices.
pub trait Float:
    sealed::Sealed
    + Copy
    + Debug
    + Default
    + Display
    + PartialOrd
    + Send
    + Sync
    + Add<Output = Self>
    + AddAssign
    + Div<Output = Self>
    + Mul<Output = Self>
    + Neg<Output = Self>
    + Sub<Output = Self>
    + 'static
{
    /// An integer of the same width. What is asked of many numbers is gathered in one: a bool would be narrowed first, which
    /// costs more than the question.
    type Mask: Copy + Default + PartialEq + BitOr<Output = Self::Mask>;
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// Positive infinity.
    const INFINITY: Self;

    /// The nearest number of this precision.
    fn from_f64(value: f64) -> Self;
    /// The same number.
    fn to_f64(self) -> f64;
    /// |x|.
    #[must_use]
    fn abs(self) -> Self;
    /// eˣ.
    #[must_use]
    fn exp(self) -> Self;
    /// The smaller of two numbers that are not NaN.
    #[must_use]
    fn min(self, other: Self) -> Self;
    /// xⁿ.
    #[must_use]
    fn powf(self, exponent: Self) -> Self;
    /// 1, or 0 where the condition does not hold.
    fn mask(condition: bool) -> Self::Mask;
    /// Whether any number is wrong. All are asked, in whole vectors of the processor.
    #[inline(always)]
    fn any(slice: &[Self], is_wrong: impl Fn(Self) -> bool) -> bool {
        let none = Self::Mask::default();
        slice.iter().fold(none, |any, value| any | Self::mask(is_wrong(*value))) != none
    }
    /// Whether it is NaN.
    fn is_nan(self) -> bool;
    /// Whether it is neither NaN nor infinite.
    fn is_finite(self) -> bool;
}

macro_rules! float {
    ($type:ident, $mask:ident) => {
        impl Float for $type {
            type Mask = $mask;
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const INFINITY: Self = $type::INFINITY;

            #[inline]
            fn from_f64(value: f64) -> Self {
                value as $type
            }
            #[inline]
            fn to_f64(self) -> f64 {
                self.into()
            }
            #[inline]
            fn abs(self) -> Self {
                self.abs()
            }
            #[inline]
            fn exp(self) -> Self {
                self.exp()
            }
            #[inline]
            fn min(self, other: Self) -> Self {
                if other < self { other } else { self }
            }
            #[inline]
            fn powf(self, exponent: Self) -> Self {
                self.powf(exponent)
            }
            #[inline(always)]
            fn mask(condition: bool) -> $mask {
                condition.into()
            }
            #[inline]
            fn is_nan(self) -> bool {
                self.is_nan()
            }
            #[inline]
            fn is_finite(self) -> bool {
                self.is_finite()
            }
        }
    };
}

float!(f32, u32);
float!(f64, u64);
