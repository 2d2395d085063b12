//! Reduces the points of a curve without changing its appearance.

/// At most `keep` of the points, chosen so that the drawn line keeps its shape: the first, the
/// last, and in each bucket between them the point with the largest triangle between its
/// neighbours.
///
/// Points that are not finite are left out. `keep` below 3 gives only the ends.
/// Source: Sveinn Steinarsson, "Downsampling Time Series for Visual Representation", 2013 (LTTB).
pub(crate) fn largest_triangles(time: &[f64], value: &[f64], keep: usize) -> Vec<[f64; 2]> {
    let points: Vec<[f64; 2]> = time
        .iter()
        .zip(value)
        .filter(|(time, value)| time.is_finite() && value.is_finite())
        .map(|(&time, &value)| [time, value])
        .collect();
    if points.len() <= keep.max(2) {
        return points;
    }
    let (first, last) = (points[0], points[points.len() - 1]);
    let buckets = keep.saturating_sub(2);
    let inner = points.len() - 2;
    let edge = |bucket: usize| 1 + bucket * inner / buckets;
    let mut kept = vec![first];
    let mut previous = first;
    for bucket in 0..buckets {
        let here = &points[edge(bucket)..edge(bucket + 1)];
        let next = if bucket + 1 < buckets {
            centre(&points[edge(bucket + 1)..edge(bucket + 2)])
        } else {
            last
        };
        let best = here
            .iter()
            .copied()
            .max_by(|a, b| triangle(previous, *a, next).total_cmp(&triangle(previous, *b, next)));
        if let Some(best) = best {
            kept.push(best);
            previous = best;
        }
    }
    kept.push(last);
    kept
}

fn centre(points: &[[f64; 2]]) -> [f64; 2] {
    let count = points.len().max(1) as f64;
    let [time, value] =
        points.iter().fold([0.0, 0.0], |sum, point| [sum[0] + point[0], sum[1] + point[1]]);
    [time / count, value / count]
}

/// Twice the area between three points.
fn triangle(a: [f64; 2], b: [f64; 2], c: [f64; 2]) -> f64 {
    ((a[0] - c[0]) * (b[1] - a[1]) - (a[0] - b[0]) * (c[1] - a[1])).abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_ends_order_and_spikes() {
        let time: Vec<f64> = (0..10_000).map(|i| f64::from(i) * 0.01).collect();
        let mut value: Vec<f64> = time.iter().map(|t| (t / 7.0).sin()).collect();
        value[4_321] = 50.0;
        let kept = largest_triangles(&time, &value, 200);
        assert_eq!(kept.len(), 200);
        assert_eq!((kept[0][0], kept[199][0]), (time[0], time[9_999]));
        assert!(kept.windows(2).all(|pair| pair[0][0] < pair[1][0]), "time runs backwards");
        assert!(kept.iter().any(|point| point[1] == 50.0), "the spike was dropped");
    }

    #[test]
    fn short_and_broken_series_survive() {
        assert_eq!(largest_triangles(&[], &[], 10), Vec::<[f64; 2]>::new());
        let kept = largest_triangles(&[0.0, 1.0, 2.0], &[1.0, f64::NAN, 3.0], 10);
        assert_eq!(kept, [[0.0, 1.0], [2.0, 3.0]]);
        assert_eq!(largest_triangles(&[0.0, 1.0, 2.0], &[1.0, 2.0, 3.0], 0).len(), 2);
        // Of different lengths, the shorter one counts.
        assert_eq!(largest_triangles(&[0.0, 1.0], &[1.0], 10).len(), 1);
    }
}
