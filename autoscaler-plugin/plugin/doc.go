// Package plugin is what nomad-autoscaler sees of this suite: the strategies remuda-capacity,
// remuda-hpa, remuda-utilization and remuda-predictive (Strategy), the scaling target (Target) and
// the APM (APM), with their configuration (Settings) and what they observe models through (View).
//
// The strategies guarantee:
//
//   - A decision depends on nothing but its Call: what was observed, the options, the state
//     before, the clock. Call.Decide is pure; a Call that was kept as JSON gives the same
//     Answer and State again, bit for bit. Where states are large, most records leave them
//     out, and a Replayer carries them on from record to record.
//   - What is not known changes nothing: the answer is to scale in no direction, with the
//     reason, and a policy that sees nothing at all is alarmed as inert.
//   - While the controller's new leader has not heard every gateway, nothing is removed; a
//     request that it has heard of wakes a model.
//   - While replicas of a plain job group are not seen, nothing is removed: those that nobody
//     can read may be full. A model does not sleep either while an engine of it works.
//   - After a start without a state, and after a break, nothing is removed before the load was
//     observed for one full window of the strategy; growth does not wait. So a new leader of
//     nomad-autoscaler on another host, which has no state, is safe.
//   - Two autoscalers that decide at once do not act twice: an order has absolute numbers and
//     the model's index, by which the controller takes one of them.
//   - Run never returns nil, which would end the plugin (nomad-autoscaler's plugin server
//     follows the pointer).
//
// A strategy looks by itself (package observe): nomad-autoscaler's metrics have no labels
// and cannot carry a number for each replica. A check's source and query only give
// nomad-autoscaler what it asks for.
//
// Common to all: what was ordered counts as if it were there, as far as there is a place for
// it (observe.Counted); a variant that had no place, or whose replicas all failed, is not
// chosen for two minutes more where another one has a place (Options.UnplaceableHold); at 0
// replicas the first request brings one up; a model that may scale to zero goes there after
// its idle delay, and no strategy takes the last replica otherwise; the sum stays within the
// model's own bounds, those that its file gives to the controller (a policy's min and max are
// nomad-autoscaler's and come later); a change of the sum is shared out over the variants by
// cost.
package plugin
