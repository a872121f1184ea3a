package utilization_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/enginemetrics"
	u "remuda/autoscaler-plugin/utilization"
)

const aWeek = 7 * 24 * time.Hour

var monday = time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)

func newWeek(t require.TestingT, bucket time.Duration) *u.Week {
	w, err := u.NewWeek(bucket)
	require.NoError(t, err)
	return w
}

func TestNewWeekRefusesOddBuckets(t *testing.T) {
	for _, ok := range []time.Duration{time.Minute, u.DefaultBucket, 24 * time.Hour} {
		newWeek(t, ok)
	}
	for _, bad := range []time.Duration{0, -time.Hour, time.Second, 11 * time.Minute, 25 * time.Hour, time.Minute + time.Millisecond} {
		_, err := u.NewWeek(bad)
		require.ErrorContains(t, err, "divide a week", bad)
	}
}

func TestWeekGivesTheSameTimeLastWeek(t *testing.T) {
	w := newWeek(t, u.DefaultBucket)
	w.Record(monday, enginemetrics.Of(10))
	w.Record(monday.Add(14*time.Minute), enginemetrics.Of(20))
	w.Record(monday.Add(15*time.Minute), enginemetrics.Of(50))

	later := monday.Add(aWeek)
	require.Equal(t, enginemetrics.Of(15), w.LastWeek(later), "the mean of the bucket")
	require.Equal(t, enginemetrics.Of(15), w.LastWeek(later.Add(15*time.Minute-1)))
	require.Equal(t, enginemetrics.Of(50), w.LastWeek(later.Add(15*time.Minute)))
	require.True(t, w.LastWeek(later.Add(30*time.Minute)).IsZero(), "a gap is not zero")
	require.True(t, w.LastWeek(monday).IsZero())

	w.Record(later, enginemetrics.Of(99))
	require.Equal(t, enginemetrics.Of(15), w.LastWeek(later), "recording now keeps what last week says about now")
	require.Equal(t, enginemetrics.Of(99), w.LastWeek(later.Add(aWeek)))
}

func TestWeekPeakLooksAhead(t *testing.T) {
	w := newWeek(t, time.Hour)
	for i, v := range []float64{5, 1, 9, 2} {
		w.Record(monday.Add(time.Duration(i)*time.Hour), enginemetrics.Of(v))
	}
	later := monday.Add(aWeek)
	for name, c := range map[string]struct {
		at    time.Time
		ahead time.Duration
		want  enginemetrics.Value
	}{
		"no look ahead":         {later, 0, enginemetrics.Of(5)},
		"a negative one":        {later, -time.Hour, enginemetrics.Of(5)},
		"just short of it":      {later, 2*time.Hour - 1, enginemetrics.Of(5)},
		"the end is included":   {later, 2 * time.Hour, enginemetrics.Of(9)},
		"gaps are passed over":  {later.Add(-5 * time.Hour), 6 * time.Hour, enginemetrics.Of(5)},
		"nothing but gaps":      {later.Add(5 * time.Hour), 5 * time.Hour, enginemetrics.Value{}},
		"more than the week":    {later, math.MaxInt64, enginemetrics.Of(9)},
		"zero is a known value": {monday, 0, enginemetrics.Value{}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, w.LastWeekPeak(c.at, c.ahead)) })
	}
}

func TestWeekRefusesAbsurdSamples(t *testing.T) {
	w := newWeek(t, time.Hour)
	for v, want := range map[enginemetrics.Value]enginemetrics.Flaw{
		{}:                            enginemetrics.Absent,
		enginemetrics.Of(math.Inf(1)): enginemetrics.Infinite,
		enginemetrics.Of(-1):          enginemetrics.Negative,
	} {
		require.Equal(t, want, w.Record(monday, v))
	}
	require.Equal(t, enginemetrics.NotANumber, w.Record(monday, enginemetrics.Of(math.NaN())))
	require.True(t, w.LastWeek(monday.Add(aWeek)).IsZero())
	require.Equal(t, enginemetrics.None, w.Record(monday, enginemetrics.Of(0)))
	require.Equal(t, enginemetrics.Of(0), w.LastWeek(monday.Add(aWeek)))
}

// A clock that jumps costs the buckets that were written at the wrong time and no more.
func TestWeekSurvivesClockJumps(t *testing.T) {
	for name, jump := range map[string]time.Duration{
		"years forward": 20 * 365 * 24 * time.Hour, "two days forward": 48 * time.Hour,
		"years back": -20 * 365 * 24 * time.Hour, "two days back": -48 * time.Hour, "before 1970": -60 * 365 * 24 * time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWeek(t, time.Hour)
			for h := range 168 {
				w.Record(monday.Add(time.Duration(h)*time.Hour), enginemetrics.Of(float64(h)))
			}
			w.Record(monday.Add(aWeek+jump), enginemetrics.Of(7777))
			lost := 0
			for h := range 168 {
				now := monday.Add(aWeek + time.Duration(h)*time.Hour)
				if w.LastWeek(now) != enginemetrics.Of(float64(h)) {
					lost++
				}
				w.Record(now, enginemetrics.Of(float64(h)))
			}
			require.LessOrEqual(t, lost, 1)
			wrong := 0
			for h := range 168 {
				if w.LastWeek(monday.Add(2*aWeek+time.Duration(h)*time.Hour)) != enginemetrics.Of(float64(h)) {
					wrong++
				}
			}
			// A sample from less than a week ahead is averaged into the bucket that it named.
			want := 0
			if jump > 0 && jump < aWeek {
				want = 1
			}
			require.Equal(t, want, wrong, "a week later all else is as before")
		})
	}
}

// A host that was suspended for a night has a gap a week later, and nothing moved into it.
func TestWeekOfASuspendedHost(t *testing.T) {
	w := newWeek(t, time.Hour)
	suspended := func(h int) bool { return h >= 22 && h < 31 }
	for h := range 168 {
		if !suspended(h) {
			w.Record(monday.Add(time.Duration(h)*time.Hour), enginemetrics.Of(float64(h)))
		}
	}
	for h := range 168 {
		want := enginemetrics.Of(float64(h))
		if suspended(h) {
			want = enginemetrics.Value{}
		}
		require.Equal(t, want, w.LastWeek(monday.Add(aWeek+time.Duration(h)*time.Hour)), "hour %d", h)
	}
}

// The reference keeps every sample of every time in a map.
func TestPropertyWeekAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const bucket = 6 * time.Hour
		w := newWeek(t, bucket)
		sums, counts := map[int64]int64{}, map[int64]int64{}
		at := monday
		for range rapid.IntRange(0, 120).Draw(t, "samples") {
			at = at.Add(time.Duration(rapid.IntRange(0, 30).Draw(t, "hours")) * time.Hour)
			v := int64(rapid.IntRange(0, 1_000_000).Draw(t, "thousandths"))
			require.Equal(t, enginemetrics.None, w.Record(at, enginemetrics.Of(float64(v)/1000)))
			number := at.Unix() / int64(bucket/time.Second)
			sums[number] += v
			counts[number]++
		}
		b, err := json.Marshal(w)
		require.NoError(t, err)
		back := new(u.Week)
		require.NoError(t, json.Unmarshal(b, back))
		require.Equal(t, w, back)
		for d := range 29 {
			when := at.Add(time.Duration(d) * bucket)
			number := when.Add(-aWeek).Unix() / int64(bucket/time.Second)
			want := enginemetrics.Value{}
			if n := counts[number]; n > 0 {
				want = enginemetrics.Of(float64(sums[number]) / float64(n) / 1000)
			}
			require.Equal(t, want, back.LastWeek(when))
		}
	})
}

func TestPropertyWeekOrderWithinABucketDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		samples := rapid.SliceOfN(rapid.Float64Range(0, 1e6), 1, 20).Draw(t, "samples")
		order := rapid.Permutation(samples).Draw(t, "order")
		a, b := newWeek(t, time.Hour), newWeek(t, time.Hour)
		for i := range samples {
			a.Record(monday, enginemetrics.Of(samples[i]))
			b.Record(monday, enginemetrics.Of(order[i]))
		}
		require.Equal(t, a, b)
	})
}

func TestWeekRefusesWhatNoWeekWrote(t *testing.T) {
	w := newWeek(t, time.Hour)
	w.Record(monday, enginemetrics.Of(3))
	for text, want := range map[string]string{
		`{"bucket_seconds":0}`:                                 "bucket_seconds is 0",
		`{"bucket_seconds":7}`:                                 "divide a week",
		`{"bucket_seconds":9000000000000}`:                     "bucket_seconds is",
		`{"bucket_seconds":3600,"buckets":[[1,2,0]]}`:          "buckets[0]",
		`{"bucket_seconds":3600,"buckets":[[1,-2,1]]}`:         "buckets[0]",
		`{"bucket_seconds":3600,"buckets":[[1,2,1],[1,2,1]]}`:  "buckets[1] is number 1",
		`{"bucket_seconds":3600,"buckets":[[1,2,4294967297]]}`: "buckets[0]",
		`[]`: "week",
	} {
		require.ErrorContains(t, json.Unmarshal([]byte(text), w), want, text)
	}
	require.Equal(t, enginemetrics.Of(3), w.LastWeek(monday.Add(aWeek)), "a refused text changes nothing")
}

func FuzzWeekJSON(f *testing.F) {
	f.Add([]byte(`{"bucket_seconds":3600,"buckets":[[492048,3000,1],[-5,2,2]]}`))
	f.Add([]byte(`{"bucket_seconds":900,"buckets":[]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		w := new(u.Week)
		if json.Unmarshal(b, w) != nil {
			return
		}
		w.Record(monday, enginemetrics.Of(1))
		_, flaw := w.LastWeek(monday.Add(aWeek)).Get()
		require.Equal(t, enginemetrics.None, flaw)
		text, err := json.Marshal(w)
		require.NoError(t, err)
		back := new(u.Week)
		require.NoError(t, json.Unmarshal(text, back))
		require.Equal(t, w, back)
	})
}
