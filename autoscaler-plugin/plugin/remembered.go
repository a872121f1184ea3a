package plugin

import (
	"encoding/json"
	"fmt"
	"time"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/utilization"
)

// memory is what is kept of a model for a strategy: the State, and measurements that are
// too many to stand in every Call.
type memory struct {
	State State `json:"state"`
	// Week is the usage of the last week, Recent that of the last minutes, and Refused, Finished
	// and Arrived the requests that were turned away, left engines and came in them. Only
	// remuda-utilization's.
	Week     *utilization.Week `json:"week,omitempty"`
	Recent   []minute          `json:"recent,omitempty"`
	Refused  counted           `json:"refused,omitzero"`
	Finished counted           `json:"finished,omitzero"`
	Arrived  counted           `json:"arrived,omitzero"`
}

// minute is the usage of one minute, in inference seconds per minute.
type minute struct {
	Number  int64   `json:"minute"` // since 1970
	Sum     float64 `json:"sum"`
	Samples int     `json:"samples"`
}

// counted are the requests of one of the gateways' counters.
type counted struct {
	// Total is gateways' counter as last seen, At when that was; zero: it was never seen.
	Total float64   `json:"total"`
	At    time.Time `json:"at,omitzero"`
	// Recent are those of the last minutes.
	Recent []growth `json:"recent,omitempty"`
}

// growth is by how much the counter grew, as seen in one minute, and in how many seconds:
// those since it was seen before, which may be more than the minute's.
type growth struct {
	Number  int64   `json:"minute"` // since 1970
	Count   float64 `json:"count"`
	Seconds float64 `json:"seconds"`
}

// Bounds of what is remembered.
const (
	// longestLook is how far apart two looks at a counter may be, where the window is not
	// longer: what it grew by in a longer time says nothing of the present.
	longestLook = 15 * time.Minute
)

// readMemory reads what was kept.
func readMemory(raw []byte) (memory, error) {
	var m memory
	if err := json.Unmarshal(raw, &m); err != nil {
		return memory{}, fmt.Errorf("read the state: %w", err)
	}
	if err := m.State.Validate(); err != nil {
		return memory{}, fmt.Errorf("read the state: %w", err)
	}
	for _, r := range m.Recent {
		if r.Samples < 1 || !(r.Sum >= 0) {
			return memory{}, fmt.Errorf("read the state: minute %d has the sum %v of %d samples: must be 0 or more of at least 1", r.Number, r.Sum, r.Samples)
		}
	}
	for _, c := range []counted{m.Refused, m.Finished, m.Arrived} {
		if !(c.Total >= 0) {
			return memory{}, fmt.Errorf("read the state: a counter is %v: must be 0 or more", c.Total)
		}
		for _, r := range c.Recent {
			if !(r.Count >= 0 && r.Seconds > 0) {
				return memory{}, fmt.Errorf("read the state: minute %d has %v requests in %v seconds: must be 0 or more in more than 0", r.Number, r.Count, r.Seconds)
			}
		}
	}
	return m, nil
}

// usage takes a snapshot's usage in, and fills in the average over the window, what it was at
// this time last week, and how many requests per minute were turned away, left engines and came
// in the same window.
//
// Requests that wait count as if they ran: they would if there were room, and without them
// the usage of a full model could never tell by how much it is too small.
func (m *memory) usage(call *Call, window time.Duration) {
	s := &call.Snapshot
	if m.Week == nil {
		m.Week, _ = utilization.NewWeek(utilization.DefaultBucket)
	}
	number := s.At.Unix() / 60
	sample := s.Utilization().InferenceSecondsPerMinute
	if f, flaw := sample.Get(); flaw == enginemetrics.None {
		if s.Queue.Known {
			f += 60 * float64(s.Queue.Waiting)
		}
		m.Week.Record(s.At, enginemetrics.Of(f))
		m.record(number, f)
	}
	kept := m.Recent[:0]
	sum, n := 0.0, 0
	for _, r := range m.Recent {
		if !within(r.Number, number, window) {
			continue // too old, or from before the clock went back
		}
		kept = append(kept, r)
		sum += r.Sum / float64(r.Samples)
		n++
	}
	m.Recent = kept
	if n > 0 {
		call.Usage = enginemetrics.Of(sum / float64(n))
	}
	call.Forecast = m.Week.LastWeek(s.At)
	q := &s.Queue
	for _, of := range []struct {
		counted *counted
		total   enginemetrics.Value
		into    *enginemetrics.Value
	}{{&m.Refused, q.Refused, &call.Refused}, {&m.Finished, q.Finished, &call.Finished}, {&m.Arrived, q.Arrived, &call.Arrived}} {
		of.counted.look(of.total, s.At, window)
		*of.into = of.counted.perMinute(number, window)
	}
}

// within tells whether a minute is in the window that ends with the minute now.
func within(number, now int64, window time.Duration) bool {
	return number <= now && now-number < int64(max(window, time.Minute)/time.Minute)
}

// look takes in what a snapshot's counter grew by since it was seen before. Where it is not
// known that is left for the next time. One that is lower began anew and counts nothing, nor
// does it where the clock went back.
func (r *counted) look(counter enginemetrics.Value, at time.Time, window time.Duration) {
	total, flaw := counter.Get()
	if flaw != enginemetrics.None {
		return
	}
	was, elapsed := *r, at.Sub(r.At)
	r.Total, r.At = total, at.Round(0)
	if was.At.IsZero() || total < was.Total || elapsed <= 0 || elapsed > max(window, longestLook) {
		return
	}
	number, count, seconds := at.Unix()/60, total-was.Total, elapsed.Seconds()
	if n := len(r.Recent); n > 0 && r.Recent[n-1].Number == number {
		r.Recent[n-1].Count += count
		r.Recent[n-1].Seconds += seconds
		return
	}
	r.Recent = append(r.Recent, growth{Number: number, Count: count, Seconds: seconds})
}

// perMinute is the average over the window, absent where nothing of it is known; less than
// a minute of it is taken for a minute.
func (r *counted) perMinute(now int64, window time.Duration) enginemetrics.Value {
	kept := r.Recent[:0]
	count, seconds := 0.0, 0.0
	for _, m := range r.Recent {
		if !within(m.Number, now, window) {
			continue // as of Recent
		}
		kept = append(kept, m)
		count += m.Count
		seconds += m.Seconds
	}
	r.Recent = kept
	if len(kept) == 0 {
		return enginemetrics.Value{}
	}
	return enginemetrics.Of(60 * count / max(seconds, 60))
}

func (m *memory) record(number int64, f float64) {
	if n := len(m.Recent); n > 0 && m.Recent[n-1].Number == number {
		m.Recent[n-1].Sum += f
		m.Recent[n-1].Samples++
		return
	}
	m.Recent = append(m.Recent, minute{Number: number, Sum: f, Samples: 1})
}
