package torture

import (
	"fmt"
	"time"

	"github.com/anishathalye/porcupine"
)

// kind is what an operation does.
type kind string

const (
	// acquire returns when its process knows of its grant.
	acquire kind = "acquire"
	// keep is an acquire of a process that holds the lock already.
	keep kind = "keep"
	// hold is an instant at which a process marked the lock as its own.
	hold kind = "hold"
	// die is the end of a process with all its children. It is called at the
	// last mark of any of them, and returns when the process was reaped.
	die kind = "die"
)

// operation is one entry of a history.
type operation struct {
	Kind         kind
	Group        int
	Life         uint64
	Token        uint64
	Call, Return int64
}

func (o operation) String() string {
	return fmt.Sprintf("group %d life %4d %-7s token %-5d [%.6f, %.6f]", o.Group, o.Life, o.Kind, o.Token, float64(o.Call)/1e9, float64(o.Return)/1e9)
}

// lockState is the model: a lock with tokens that grow.
type lockState struct {
	token  uint64
	holder uint64 // a life, 0 for none
}

// step says whether the lock may do o in state s. An acquire whose grant nobody
// knows of, since its process died first, is not in the history: it would have
// used up a token, and tokens may have gaps.
func step(s lockState, o operation) (bool, lockState) {
	switch o.Kind {
	case acquire:
		return s.holder == 0 && o.Token > s.token, lockState{o.Token, o.Life}
	case keep, hold:
		return s.holder == o.Life && s.token == o.Token, s
	case die:
		return s.holder == o.Life, lockState{s.token, 0}
	default:
		return false, s
	}
}

// linearizable checks a history, each group by itself.
func linearizable(ops []operation) error {
	model := porcupine.Model{
		Init: func() any { return lockState{} },
		Step: func(state, input, _ any) (bool, any) { return step(state.(lockState), input.(operation)) },
	}
	groups := map[int][]porcupine.Operation{}
	for _, o := range ops {
		groups[o.Group] = append(groups[o.Group], porcupine.Operation{ClientId: int(o.Life), Input: o, Call: o.Call, Return: o.Return})
	}
	for g, history := range groups {
		switch porcupine.CheckOperationsTimeout(model, history, 30*time.Second) {
		case porcupine.Ok:
		case porcupine.Illegal:
			return fmt.Errorf("the history of group %d (%d operations) is not linearizable", g, len(history))
		default:
			return fmt.Errorf("whether the history of group %d (%d operations) is linearizable was not found out in time", g, len(history))
		}
	}
	return nil
}
