package predictive

import (
	"math"
	"time"
)

const (
	bucketSeconds = 300
	dayBuckets    = 86400 / bucketSeconds
	weekBuckets   = 7 * dayBuckets
	// compared is how many buckets the level of now is compared over: an hour.
	compared = 12
	// ring holds a week and the hour before it.
	ring = weekBuckets + compared + 1
	// unknown marks a bucket that nothing was measured in.
	unknown = -1
	// A level is believed to differ from that of the season by no more than this.
	leastRatio, mostRatio = 0.5, 1.5
)

// Season is the mean load of each five minutes of the last week, in hundredths of a slot.
// Nothing is made up for gaps.
type Season struct {
	// Bucket counts the five minutes of the caller's clock; it is the one of Sum.
	Bucket int64 `json:"bucket"`
	// Sum is load times seconds of the bucket so far, and Seconds how many.
	Sum     float64 `json:"sum"`
	Seconds float64 `json:"seconds"`
	// Means is a ring by Bucket modulo its length.
	Means []int32 `json:"means,omitempty"`
}

func (s *Season) valid() bool {
	return (len(s.Means) == 0 || len(s.Means) == ring) && s.Bucket >= 0 && s.Seconds >= 0 && s.Sum >= 0
}

// record adds load for a time that has passed until now. A clock that went back writes
// nothing until it is where it was; one that went back for more than an hour starts anew.
func (s *Season) record(now time.Duration, load, seconds float64) {
	b := int64(now / (bucketSeconds * time.Second))
	if b < 0 {
		return
	}
	if len(s.Means) == 0 || b < s.Bucket-compared {
		*s = Season{Bucket: b, Means: s.Means}
		if len(s.Means) == 0 {
			s.Means = make([]int32, ring)
		}
		for i := range s.Means {
			s.Means[i] = unknown
		}
	}
	if b < s.Bucket {
		return
	}
	if b > s.Bucket {
		if s.Seconds >= bucketSeconds/2 {
			s.Means[s.Bucket%ring] = int32(math.Min(math.Round(100*s.Sum/s.Seconds), math.MaxInt32))
		} else {
			s.Means[s.Bucket%ring] = unknown
		}
		for k := int64(1); k < min(b-s.Bucket, ring); k++ {
			s.Means[(s.Bucket+k)%ring] = unknown
		}
		s.Bucket, s.Sum, s.Seconds = b, 0, 0
	}
	s.Sum += load * seconds
	s.Seconds += seconds
}

// forecast is the highest load of the buckets from now until ahead, as yesterday and last
// week had them, each scaled to the level of the last hour; 0 where neither is known. One whose hour had
// no load, or next to none, counts where this hour has none either, and no other does.
func (s *Season) forecast(ahead float64) float64 {
	if len(s.Means) == 0 {
		return 0
	}
	at := func(b int64) int32 {
		if b < 0 || b >= s.Bucket || b <= s.Bucket-ring {
			return unknown
		}
		return s.Means[b%ring]
	}
	best := 0.0
	for _, lag := range []int64{dayBuckets, weekBuckets} {
		now, then, n := 0.0, 0.0, 0
		for i := int64(1); i <= compared; i++ {
			a, b := at(s.Bucket-i), at(s.Bucket-i-lag)
			if a >= 0 && b >= 0 {
				now, then, n = now+float64(a), then+float64(b), n+1
			}
		}
		empty := func(sum float64) bool { return sum < float64(n) } // no hundredth of a slot, on average
		if n < compared/2 || empty(then) != empty(now) {
			continue
		}
		ratio := 1.0
		if !empty(then) {
			ratio = math.Min(math.Max(now/then, leastRatio), mostRatio)
		}
		top := int32(unknown)
		for i := int64(0); i <= int64(math.Ceil(ahead/bucketSeconds)); i++ {
			top = max(top, at(s.Bucket+i-lag))
		}
		if top > 0 {
			best = math.Max(best, ratio*float64(top)/100)
		}
	}
	return best
}
