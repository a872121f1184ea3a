package optimizer

import "fmt"

// RefusalCode is the typed reason for not answering.
type RefusalCode string

// Why there is no answer.
const (
	BadInput       RefusalCode = "bad_input"
	TrafficUnknown RefusalCode = "traffic_unknown"
	AbsurdSamples  RefusalCode = "absurd_samples"
	TooFewSamples  RefusalCode = "too_few_samples"
	TooNarrow      RefusalCode = "too_narrow"
	FallingLatency RefusalCode = "falling_latency"
	NotALine       RefusalCode = "not_a_line"
	TooUncertain   RefusalCode = "too_uncertain"
	NoVariant      RefusalCode = "no_variant"
	AbsurdDemand   RefusalCode = "absurd_demand"
)

// Refusal is why there is no answer.
type Refusal struct {
	Code   RefusalCode `json:"code"`
	Reason string      `json:"reason"`
}

// Error makes a refusal an error for those who want one.
func (r *Refusal) Error() string { return string(r.Code) + ": " + r.Reason }

func refuse(code RefusalCode, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Reason: fmt.Sprintf(format, args...)}
}
