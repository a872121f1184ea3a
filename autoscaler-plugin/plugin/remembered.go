package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/utilization"
)

// memory is what is kept of a model for a strategy: the State, and measurements that are
// too many to stand in every Call.
type memory struct {
	State State `json:"state"`
	// Week is the usage of the last week, Recent that of the last minutes in inference seconds per minute, each of so
	// many samples, and Refused, Finished
	// and Arrived the requests that were turned away, left engines and came in them. Only
	// remuda-utilization's.
	Week     *utilization.Week `json:"week,omitempty"`
	Recent   minutes           `json:"recent,omitempty"`
	Refused  counted           `json:"refused,omitzero"`
	Finished counted           `json:"finished,omitzero"`
	Arrived  counted           `json:"arrived,omitzero"`
}

// counted are the requests of one of the gateways' counters.
type counted struct {
	// Total is gateways' counter as last seen, At when that was; zero: it was never seen.
	Total float64   `json:"total"`
	At    time.Time `json:"at,omitzero"`
	// Recent are those of the last minutes, and the seconds in which they came: those since the
	// counter was seen before, which may be more than the minute's.
	Recent minutes `json:"recent,omitempty"`
}

// minute is what was seen in one minute: a sum, and of how much it is one.
type minute struct {
	Number int64   `json:"minute"` // since 1970
	Sum    float64 `json:"sum"`
	Of     float64 `json:"of"`
}

// minutes are the last ones that something was seen in.
type minutes []minute

// add adds to the minute of that number.
func (m *minutes) add(number int64, sum, of float64) {
	if n := len(*m); n > 0 && (*m)[n-1].Number == number {
		(*m)[n-1].Sum += sum
		(*m)[n-1].Of += of
		return
	}
	*m = append(*m, minute{Number: number, Sum: sum, Of: of})
}

// cut leaves those of the window that ends with the minute now. Others are too old, or from before
// the clock went back.
func (m *minutes) cut(now int64, window time.Duration) {
	*m = slices.DeleteFunc(*m, func(o minute) bool {
		return o.Number > now || now-o.Number >= int64(max(window, time.Minute)/time.Minute)
	})
}

// validate says what cannot be in those that were read from outside.
func (m minutes) validate() error {
	for _, o := range m {
		if !(o.Sum >= 0 && o.Of > 0) {
			return fmt.Errorf("minute %d has the sum %v of %v: must be 0 or more of more than 0", o.Number, o.Sum, o.Of)
		}
	}
	return nil
}

// longestLook is how far apart two looks at a counter may be, where the window is not
// longer: what it grew by in a longer time says nothing of the present.
const longestLook = 15 * time.Minute

// readMemory reads what was kept.
func readMemory(raw []byte) (memory, error) {
	var m memory
	if err := json.Unmarshal(raw, &m); err != nil {
		return memory{}, fmt.Errorf("read the state: %w", err)
	}
	errs := []error{m.State.Validate(), m.Recent.validate()}
	for _, c := range []counted{m.Refused, m.Finished, m.Arrived} {
		if !(c.Total >= 0) {
			errs = append(errs, fmt.Errorf("a counter is %v: must be 0 or more", c.Total))
		}
		errs = append(errs, c.Recent.validate())
	}
	if err := errors.Join(errs...); err != nil {
		return memory{}, fmt.Errorf("read the state: %w", err)
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
		m.Recent.add(number, f, 1)
	}
	m.Recent.cut(number, window)
	sum := 0.0
	for _, r := range m.Recent {
		sum += r.Sum / r.Of
	}
	if n := len(m.Recent); n > 0 {
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
	r.Recent.add(at.Unix()/60, total-was.Total, elapsed.Seconds())
}

// perMinute is the average over the window, absent where nothing of it is known; less than
// a minute of it is taken for a minute.
func (r *counted) perMinute(now int64, window time.Duration) enginemetrics.Value {
	r.Recent.cut(now, window)
	if len(r.Recent) == 0 {
		return enginemetrics.Value{}
	}
	count, seconds := 0.0, 0.0
	for _, m := range r.Recent {
		count += m.Sum
		seconds += m.Of
	}
	return enginemetrics.Of(60 * count / max(seconds, 60))
}
