package scalesim

import "math/rand/v2"

// Lengths draws the tokens of a request.
type Lengths interface {
	Draw(*rand.Rand) (context, generated int32)
}
