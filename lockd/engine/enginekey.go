package engine

import (
	"os"

	"remuda/internal/replica"
	"remuda/lockd/engine/dialect"
)

// engineKey returns the engine's API key, empty if it has none. A key that the command or the
// environment has stays. Otherwise, in a job that the controller registered, it is one that the
// gateways can derive from the engine's offer. It is called before the engine is started.
func (s *Shim) engineKey() (string, error) {
	if key := dialect.KeyOf(s.cfg.Dialect, s.cfg.Command, os.Getenv); key != "" || s.cfg.GatewayKey == nil {
		return key, nil
	}
	if _, _, ok := dialect.WithKey(s.cfg.Dialect, ""); !ok {
		return "", nil
	}
	key, offer, err := replica.NewEngineKey(s.cfg.GatewayKey, s.cfg.Name.String())
	if err != nil {
		return "", err
	}
	err = s.records.update(func(r *Record) {
		if !replica.OfferedTo(s.cfg.GatewayKey, r.Offer) {
			r.Key, r.Offer = key, offer
		}
		key, offer = r.Key, r.Offer
	})
	if err != nil {
		s.logger.Warn("cannot record the engine's API key: it has another one after a restart", "error", err)
	}
	s.engine.Offer = offer
	s.keyArgs, s.keyEnv, _ = dialect.WithKey(s.cfg.Dialect, key)
	return key, nil
}
