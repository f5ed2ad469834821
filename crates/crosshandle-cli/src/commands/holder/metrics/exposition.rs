//! Encodes a holder's metrics in the format of Prometheus.

use super::sample::Sample;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::fmt::{Debug, Error};
use std::sync::Arc;

/// Content type of the metrics.
pub(super) const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Encodes a sample as text.
pub(super) fn text(sample: &Arc<Sample>) -> Result<String, Error> {
    let mut registry = Registry::with_prefix("crosshandle_holder");
    registry.register_collector(Box::new(Held(Arc::clone(sample))));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Held(Arc<Sample>);

impl Collector for Held {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let sample = &*self.0;
        let status = &sample.status;
        let mut one = |name: &str, help: &str, unit: Option<&Unit>, metric: &dyn Encode| {
            metric.encode(&mut encoder, name, help, unit)
        };
        let gauge = |value: u64| ConstGauge::new(value);
        let counter = |value: u64| ConstCounter::new(value);
        let names = &sample.names;
        one("names", "Names that are held", None, &gauge(status.names))?;
        one(
            "held",
            "Bytes that are held",
            Some(&Unit::Bytes),
            &gauge(status.bytes),
        )?;
        one(
            "lost_names",
            "Names that no reader has restored since both processes died",
            None,
            &gauge(status.lost),
        )?;
        one(
            "safe",
            "1 if all held objects survive the end of this process, else 0",
            None,
            &gauge(status.is_safe.into()),
        )?;
        one(
            "successor",
            "1 if there is a successor, else 0",
            None,
            &gauge(status.successor.is_some().into()),
        )?;
        one(
            "takeovers",
            "Times that a successor has taken over",
            None,
            &counter(status.takeovers),
        )?;
        one(
            "refusals",
            "Requests and connections that this process has refused",
            None,
            &counter(sample.refusals),
        )?;
        one(
            "reader_deaths",
            "Readers that ended without closing their open objects",
            None,
            &counter(sample.deaths),
        )?;
        one(
            "readers",
            "Processes that are attached to held objects",
            None,
            &gauge(sample.importers as u64),
        )?;
        one(
            "waits",
            "Threads of this user that wait for a signal",
            None,
            &gauge(sample.waits.len() as u64),
        )?;
        one(
            "longest_wait",
            "Duration of the longest wait of a thread of this user for a signal",
            Some(&Unit::Seconds),
            &ConstGauge::new(sample.longest_wait.as_secs_f64()),
        )?;
        one(
            "open_files",
            "Descriptors that this process has open",
            None,
            &gauge(sample.open_files as u64),
        )?;
        one(
            "start_time",
            "Time at which this process began to export, since 1970",
            Some(&Unit::Seconds),
            &gauge(sample.started_unix_s),
        )?;
        each(
            &mut encoder,
            "version",
            "The version of a name",
            names
                .iter()
                .map(|name| (name.held.name.as_str(), name.held.version)),
        )?;
        each(
            &mut encoder,
            "name_bytes",
            "Bytes under a name",
            names
                .iter()
                .map(|name| (name.held.name.as_str(), name.held.bytes())),
        )?;
        each(
            &mut encoder,
            "name_readers",
            "Processes that have a name's memory open",
            names
                .iter()
                .map(|name| (name.held.name.as_str(), name.readers as u64)),
        )?;
        each(
            &mut encoder,
            "name_pinned",
            "1 if a name is protected from being removed",
            names
                .iter()
                .map(|name| (name.held.name.as_str(), name.held.pinned.into())),
        )?;
        each(
            &mut encoder,
            "name_epoch",
            "Writers that have claimed a name",
            names
                .iter()
                .map(|name| (name.held.name.as_str(), name.held.epoch)),
        )
    }
}

trait Encode {
    fn encode(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
    ) -> Result<(), Error>;
}

impl<M: EncodeMetric> Encode for M {
    fn encode(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
    ) -> Result<(), Error> {
        let metric = encoder.encode_descriptor(name, help, unit, self.metric_type())?;
        EncodeMetric::encode(self, metric)
    }
}

/// Encodes a metric with one gauge for each held name.
fn each<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    metric: &str,
    help: &str,
    values: impl Iterator<Item = (&'a str, u64)>,
) -> Result<(), Error> {
    let mut metric = encoder.encode_descriptor(
        metric,
        help,
        None,
        prometheus_client::metrics::MetricType::Gauge,
    )?;
    for (name, value) in values {
        let gauge = ConstGauge::new(value);
        EncodeMetric::encode(&gauge, metric.encode_family(&[("name", name)])?)?;
    }
    Ok(())
}
