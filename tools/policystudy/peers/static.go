package peers

import (
	"fmt"

	"remuda/tools/policystudy/scalesim"
)

// Static always wants the same number of replicas.
type Static int

// Name implements scalesim.Policy.
func (s Static) Name() string { return fmt.Sprintf("static-%d", int(s)) }

// Decide implements scalesim.Policy.
func (s Static) Decide(*scalesim.Observation) int { return int(s) }
