package share

import "remuda/controller/api"

// Budget makes a gateway's claim of a budget one of what is left of the budget. counted: what the claim has
// as used is not a part of that any more.
//
// What gateways hold of a budget is never more than what is left of it, if the caller counts usage and takes
// claims in one step: what a gateway uses makes both of them smaller by the same.
func Budget(c *api.ShareClaim, left int64, counted bool) {
	if counted {
		c.Held = max(c.Held-c.Used, 0)
	}
	c.Of, c.Used = int(min(max(left, 0), api.MaxShareUnits)), 0
}
