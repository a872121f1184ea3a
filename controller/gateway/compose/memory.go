package compose

import (
	"math"
	"net/http"
	"strconv"
)

// roomStep is how much memory a call takes at a time: pieces of streams are small.
const roomStep = 4 << 10

// room is the memory of one call's answer. It belongs to one goroutine.
type room struct {
	x    *exchange
	left int
}

// take makes room for so many bytes. The error fails the step.
func (r *room) take(n int) error {
	if n > r.left {
		more := max(n-r.left, roomStep)
		if !r.x.memory.Take(more) {
			f := &failure{status: http.StatusServiceUnavailable, typ: typeServer, code: "gateway_busy",
				message: "the gateway's buffer has no memory for the response; retry after the time in the Retry-After header"}
			if after := r.x.c.cfg.RetryAfter; after > 0 {
				f.retryAfter = strconv.Itoa(int(math.Ceil(after.Seconds())))
			}
			return f
		}
		r.left += more
	}
	r.left -= n
	return nil
}
