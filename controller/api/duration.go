package api

import (
	"encoding/json"
	"fmt"
	"time"
)

// Duration is written in JSON as Go writes it, as "15m0s".
type Duration time.Duration

// String writes it as "15m0s".
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalJSON implements json.Marshaler.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// UnmarshalJSON implements json.Unmarshaler.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("duration is %s: must be a string, such as \"15m\"", b)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("duration is %q: must be a number with a unit, such as \"15m\"", s)
	}
	*d = Duration(v)
	return nil
}
