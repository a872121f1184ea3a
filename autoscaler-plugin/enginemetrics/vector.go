package enginemetrics

import (
	"encoding/json"
	"fmt"

	"github.com/prometheus/common/model"
)

// Vector is an instant query's answer. A sample's time is when the query was evaluated, by the
// server's clock, and not when the engine was scraped; Queries.Seen asks for that.
type Vector struct {
	Series model.Vector
	// Warnings say that the answer may be incomplete.
	Warnings []string
}

// QueryError is what a Prometheus server answers when it cannot answer a query.
type QueryError struct {
	// Kind is Prometheus' errorType, such as bad_data or timeout.
	Kind string
	// Message is its explanation.
	Message string
}

func (e *QueryError) Error() string { return fmt.Sprintf("prometheus: %s: %s", e.Kind, e.Message) }

// maxText bounds what is repeated of a server's words.
const maxText = 512

func clip(s string) string {
	if len(s) > maxText {
		return s[:maxText] + "…"
	}
	return s
}

// DecodeVector reads the answer of a Prometheus server to an instant query, also that of a query
// that failed, which is a *QueryError.
func DecodeVector(body []byte) (Vector, error) {
	var w struct {
		Status    string   `json:"status"`
		ErrorType string   `json:"errorType"`
		Error     string   `json:"error"`
		Warnings  []string `json:"warnings"`
		Data      struct {
			ResultType string          `json:"resultType"`
			Result     json.RawMessage `json:"result"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &w); err != nil {
		return Vector{}, fmt.Errorf("prometheus answer: %w", err)
	}
	switch {
	case w.Status == "error":
		return Vector{}, &QueryError{Kind: clip(w.ErrorType), Message: clip(w.Error)}
	case w.Status != "success":
		return Vector{}, fmt.Errorf("prometheus answer: status is %q: must be success or error", clip(w.Status))
	case w.Data.ResultType != "vector":
		return Vector{}, fmt.Errorf("prometheus answer: result type is %q: must be vector, as for an instant query", clip(w.Data.ResultType))
	}
	var out Vector
	if err := json.Unmarshal(w.Data.Result, &out.Series); err != nil {
		return Vector{}, fmt.Errorf("prometheus answer: data.result: %w", err)
	}
	if out.Series == nil {
		return Vector{}, fmt.Errorf("prometheus answer: data.result is %s: must be a list", clip(string(w.Data.Result)))
	}
	if len(out.Series) > MaxSeries {
		return Vector{}, fmt.Errorf("prometheus answer: %w: more than %d", ErrTooManySeries, MaxSeries)
	}
	for i, s := range out.Series {
		if s == nil || s.Histogram != nil || s.Timestamp == 0 { // or it has no value
			return Vector{}, fmt.Errorf("prometheus answer: result[%d] is not a number", i)
		}
	}
	for _, warning := range w.Warnings[:min(len(w.Warnings), maxNames)] {
		out.Warnings = append(out.Warnings, clip(warning))
	}
	return out, nil
}
