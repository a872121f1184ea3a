package utilization

import (
	"encoding/json"
	"fmt"
	"math"
	"time"

	"remuda/autoscaler-plugin/enginemetrics"
)

// DefaultBucket is Workers AI's usage window.
const DefaultBucket = 15 * time.Minute

const (
	week = 7 * 24 * time.Hour
	// maxMillis bounds one sample, in thousandths, so that a bucket's sum cannot
	// overflow before its count does.
	maxMillis = 1 << 40
)

// Week records a rate (inference seconds per minute, or any other amount that is not
// negative) in buckets of equal length and gives it back for the same time last week.
// It holds one week and one bucket, so that what is recorded now does not overwrite
// what a week ago says about now.
//
// Each bucket carries the time it stands for, so that the clock may jump either way: a
// jump spoils the buckets that are written to at the wrong time and nothing else (a
// sample from less than a week ahead is averaged with the true ones), a bucket of another
// time is a gap, and a suspended host leaves gaps, not zeros. Samples are kept in
// thousandths and added as integers: the order within a bucket does not matter. Weeks
// are counted in UTC, so that a change to or from summer time shifts the forecast by
// an hour for a week. The zero Week is only good for UnmarshalJSON. Not safe for
// concurrent use.
type Week struct {
	bucket time.Duration
	slots  []slot
}

// slot is one bucket: the sum of n samples in thousandths, and its number since 1970.
// n is 0 where nothing was recorded.
type slot struct {
	sum    int64
	number int64
	n      int32
}

// NewWeek returns an empty Week. The bucket must be whole seconds, at least one minute
// and at most one day, and divide the week.
func NewWeek(bucket time.Duration) (*Week, error) {
	if bucket < time.Minute || bucket > 24*time.Hour || bucket%time.Second != 0 || week%bucket != 0 {
		return nil, fmt.Errorf("bucket is %s: must be whole seconds from 1m to 24h that divide a week, such as %s", bucket, DefaultBucket)
	}
	return &Week{bucket: bucket, slots: make([]slot, week/bucket+1)}, nil
}

// Record adds a sample at a time. A sample that is absent or absurd is refused with
// its flaw and changes nothing.
func (w *Week) Record(at time.Time, v enginemetrics.Value) enginemetrics.Flaw {
	f, flaw := v.Get()
	if flaw != enginemetrics.None {
		return flaw
	}
	number := w.number(at)
	s := w.slot(number)
	if s.n == 0 || s.number != number {
		*s = slot{number: number}
	}
	if s.n == math.MaxInt32 || s.sum > math.MaxInt64-maxMillis {
		return enginemetrics.None // the mean of so many stands
	}
	s.sum += int64(math.Round(min(f*1000, maxMillis)))
	s.n++
	return enginemetrics.None
}

// LastWeek is the mean recorded in the bucket that holds the same time last week, or
// absent where that is a gap.
func (w *Week) LastWeek(at time.Time) enginemetrics.Value { return w.mean(w.number(at.Add(-week))) }

// LastWeekPeak is the largest bucket mean of last week from at until at+ahead, both
// ends included, so that what takes long to start can be started in time. Gaps are
// passed over; it is absent where all of it is a gap. ahead is cut at one week.
func (w *Week) LastWeekPeak(at time.Time, ahead time.Duration) enginemetrics.Value {
	first := w.number(at.Add(-week))
	last := w.number(at.Add(-week).Add(min(max(ahead, 0), week)))
	var peak enginemetrics.Value
	for number := first; number <= last; number++ {
		v := w.mean(number)
		if f, flaw := v.Get(); flaw == enginemetrics.None {
			if known, flaw := peak.Get(); flaw != enginemetrics.None || f > known {
				peak = v
			}
		}
	}
	return peak
}

func (w *Week) number(at time.Time) int64 {
	seconds, length := at.Unix(), int64(w.bucket/time.Second)
	number := seconds / length
	if seconds%length < 0 {
		number--
	}
	return number
}

func (w *Week) slot(number int64) *slot {
	n := int64(len(w.slots))
	return &w.slots[(number%n+n)%n]
}

func (w *Week) mean(number int64) enginemetrics.Value {
	s := w.slot(number)
	if s.n == 0 || s.number != number {
		return enginemetrics.Value{}
	}
	return enginemetrics.Of(float64(s.sum) / float64(s.n) / 1000)
}

// weekJSON lists only the buckets that hold something, in the order of the ring.
type weekJSON struct {
	BucketSeconds int64      `json:"bucket_seconds"`
	Buckets       [][3]int64 `json:"buckets"` // number since 1970, sum in thousandths, samples
}

// MarshalJSON writes the whole state; UnmarshalJSON reads it back.
func (w *Week) MarshalJSON() ([]byte, error) {
	out := weekJSON{BucketSeconds: int64(w.bucket / time.Second), Buckets: [][3]int64{}}
	for _, s := range w.slots {
		if s.n > 0 {
			out.Buckets = append(out.Buckets, [3]int64{s.number, s.sum, int64(s.n)})
		}
	}
	return json.Marshal(out)
}

// UnmarshalJSON replaces the state. It refuses a bucket that no Week could have
// written, and changes nothing then.
func (w *Week) UnmarshalJSON(b []byte) error {
	var in weekJSON
	if err := json.Unmarshal(b, &in); err != nil {
		return fmt.Errorf("week: %w", err)
	}
	if in.BucketSeconds < 1 || in.BucketSeconds > int64(week/time.Second) {
		return fmt.Errorf("week: bucket_seconds is %d: must be 60 to 86400", in.BucketSeconds)
	}
	fresh, err := NewWeek(time.Duration(in.BucketSeconds) * time.Second)
	if err != nil {
		return fmt.Errorf("week: %w", err)
	}
	for i, e := range in.Buckets {
		s := fresh.slot(e[0])
		switch {
		case s.n != 0:
			return fmt.Errorf("week: buckets[%d] is number %d: conflicts with number %d", i, e[0], s.number)
		case e[1] < 0 || e[2] < 1 || e[2] > math.MaxInt32:
			return fmt.Errorf("week: buckets[%d] has the sum %d of %d samples: must be a sum of 0 or more of 1 to %d samples", i, e[1], e[2], math.MaxInt32)
		}
		*s = slot{number: e[0], sum: e[1], n: int32(e[2])}
	}
	*w = *fresh
	return nil
}
