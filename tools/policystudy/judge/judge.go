// Package judge lets a program that scores scaling policies ask remuda-predictive: one line of
// JSON in (a predictive.Input, the snapshot at a tick), one line out (the predictive.Decision).
// An adapter of NVIDIA's Planner Gym is such a program: its tick has the queued and the
// scheduled requests of each worker, and wants the number of replicas.
package judge

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"

	"remuda/autoscaler-plugin/predictive"
)

// maxLine is the longest line that is read, in bytes.
const maxLine = 1 << 20

// Run answers each line of in until it ends. A line that is no input ends it with an error.
func Run(c predictive.Config, in io.Reader, out io.Writer) error {
	if err := c.Validate(); err != nil {
		return err
	}
	var state predictive.State
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	answers := json.NewEncoder(out)
	for n := 1; lines.Scan(); n++ {
		var input predictive.Input
		if err := json.Unmarshal(lines.Bytes(), &input); err != nil {
			return fmt.Errorf("line %d: want the JSON of a snapshot: %w", n, err)
		}
		if err := answers.Encode(predictive.Next(&c, &state, &input)); err != nil {
			return err
		}
	}
	return lines.Err()
}
