package dialect

import (
	"context"
	"fmt"
	"net/http"
)

// sim speaks to the simulated engine: vLLM's surface, and a move to other GPUs.
type sim struct{ *vllm }

var _ Dialect = sim{}

func newSim(a *api, c Config) (Dialect, error) {
	return sim{&vllm{api: a, model: c.Model, turn: newTurn()}}, nil
}

func (sim) Name() string { return Sim }

func (sim) CanMove() bool { return true }

// Move asks the engine, which refuses with 409 while it is awake and where its weights
// are shared.
func (s sim) Move(ctx context.Context, gpus []string) error {
	if err := s.turn.take(ctx); err != nil {
		return err
	}
	defer s.turn.give()
	_, err := s.call(ctx, http.MethodPost, "/sim/gpus", map[string][]string{"gpus": gpus})
	if hasStatus(err, http.StatusConflict, http.StatusNotFound, http.StatusMethodNotAllowed) {
		err = fmt.Errorf("%w: %w", ErrCannotMove, err)
	}
	if err != nil {
		return fmt.Errorf("move the engine: %w", err)
	}
	return nil
}
