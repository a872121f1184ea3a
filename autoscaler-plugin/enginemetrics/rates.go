package enginemetrics

import "time"

// Rates are taken from the first to the last sample of the window, over times in
// which the counter was seen without a gap. A rate that cannot be told is absent.
type Rates struct {
	// Requests that finished and tokens, each per second.
	Finished         Value `json:"finished"`
	PromptTokens     Value `json:"prompt_tokens"`
	GenerationTokens Value `json:"generation_tokens"`
	// Means, in seconds, over what was observed in the window; absent when nothing was.
	Queue    Value `json:"queue"`
	EndToEnd Value `json:"end_to_end"`
	// FirstTokens and InterTokens have what was observed in the window.
	FirstTokens Latency `json:"first_tokens,omitzero"`
	InterTokens Latency `json:"inter_tokens,omitzero"`
}

func (t *track) rates() Rates {
	var r Rates
	var growth [counters]Value
	for i := range counters {
		delta, over, ok := t.growth(i)
		if !ok {
			continue
		}
		growth[i] = Of(delta)
		if i < int(QueueSum-Finished) {
			*[...]*Value{&r.Finished, &r.PromptTokens, &r.GenerationTokens}[i] = Of(delta / over.Seconds())
		}
	}
	mean := func(sum Quantity) Value {
		s, count := growth[sum-Finished], growth[sum-Finished+1]
		if !s.present() || count.number() == 0 {
			return Value{}
		}
		return Of(s.number() / count.number())
	}
	r.Queue, r.EndToEnd = mean(QueueSum), mean(EndToEndSum)
	r.FirstTokens, r.InterTokens = t.latency(0), t.latency(1)
	return r
}

// growth is by how much counter i grew, and over how long.
func (t *track) growth(i int) (float64, time.Duration, bool) {
	if t.Since[i] == 0 {
		return 0, 0, false
	}
	last := t.Points[len(t.Points)-1]
	for _, p := range t.Points {
		if max(p.At, 1) >= t.Since[i] {
			return last.Total[i] - p.Total[i], time.Duration(last.At - p.At), last.At > p.At
		}
	}
	return 0, 0, false
}
