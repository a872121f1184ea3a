package planner_test

import (
	"fmt"
	"testing"
)

func TestTmp(t *testing.T) {
	for s := range uint64(3000) {
		ok := t.Run(fmt.Sprint(s), func(t *testing.T) { simulateTiers(t, s+77777, 50) })
		_ = ok
	}
}
