package gateway

import "time"

// LongGrace gives what is cut off at the end of a gateway the time that a slow machine needs.
// It is called before there are any.
func LongGrace() { abortGrace = 10 * time.Second }
