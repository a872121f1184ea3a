package gateway

import "time"

// LongGrace gives what is cut off at the end of a gateway the time that a slow machine needs.
// It is called before there are any.
func LongGrace() { abortGrace = 10 * time.Second }

// EngineRoutes are the paths that go to the engines of the model that the body names.
func EngineRoutes() map[string]bool {
	out := make(map[string]bool, len(engineRoutes))
	for path := range engineRoutes {
		out[path] = true
	}
	return out
}
