//! Demand-assigned capacity of DVB-RCS2: a terminal asks for room on the return link and waits for it.

use crate::resolve::{ResolveError, check_number, check_rate, check_time};
use midhop_units::{Duration, Rate};
use serde::{Deserialize, Serialize};

/// DAMA as written; each key may be left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DamaSpec {
    /// The period at which capacity is requested and granted. Default 26.5 ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superframe: Option<Duration>,
    /// From the ground to the satellite. Default 125 ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hop_delay: Option<Duration>,
    /// Constant rate assignment: granted always, asked or not. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cra: Option<Rate>,
    /// The most that rate-based requests may ask for. Default the link's rate; zero turns it off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rbdc_max: Option<Rate>,
    /// How long a rate-based request stands unless renewed. Default 16 superframes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rbdc_timeout: Option<Duration>,
    /// Whether the backlog is requested as volume. Default yes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vbdc: Option<bool>,
    /// Free capacity: granted when nobody asked. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fca: Option<Rate>,
}

/// DAMA, resolved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DamaPlan {
    /// The period at which capacity is requested and granted.
    pub superframe: Duration,
    /// From the ground to the satellite.
    pub hop_delay: Duration,
    /// Constant rate assignment.
    pub cra: Rate,
    /// The most that rate-based requests may ask for.
    pub rbdc_max: Rate,
    /// How long a rate-based request stands unless renewed.
    pub rbdc_timeout: Duration,
    /// Whether the backlog is requested as volume.
    pub vbdc: bool,
    /// Free capacity.
    pub fca: Rate,
}

impl DamaSpec {
    /// `rate` is the highest rate of the carrier, `None` without a limit.
    pub(crate) fn resolve(&self, rate: Option<Rate>) -> Result<DamaPlan, ResolveError> {
        let Some(rate) = rate else {
            let hint = "capacity can only be granted on a link with a rate";
            return Err(ResolveError::missing("rate", hint));
        };
        let superframe = self.superframe.unwrap_or(Duration::from_us(26_500));
        check_number("dama.superframe (ms)", superframe.as_ms_f64(), 1.0..=10_000.0)?;
        let plan = DamaPlan {
            superframe,
            hop_delay: self.hop_delay.unwrap_or(Duration::from_ms(125)),
            cra: self.cra.unwrap_or(Rate::ZERO),
            rbdc_max: self.rbdc_max.unwrap_or(rate),
            rbdc_timeout: self.rbdc_timeout.unwrap_or(superframe * 16),
            vbdc: self.vbdc.unwrap_or(true),
            fca: self.fca.unwrap_or(Rate::ZERO),
        };
        check_number("dama.hop_delay (ms)", plan.hop_delay.as_ms_f64(), 0.0..=10_000.0)?;
        check_time("dama.rbdc_timeout", plan.rbdc_timeout)?;
        for (key, value) in
            [("dama.cra", plan.cra), ("dama.rbdc_max", plan.rbdc_max), ("dama.fca", plan.fca)]
        {
            check_rate(key, value)?;
        }
        if plan.cra == Rate::ZERO && plan.fca == Rate::ZERO && !plan.vbdc {
            let hint = "a packet at rest would never be granted room: set `cra` or `fca`, or keep \
                        `vbdc`";
            return Err(ResolveError::out_of_range("dama.vbdc", false, hint));
        }
        Ok(plan)
    }
}
