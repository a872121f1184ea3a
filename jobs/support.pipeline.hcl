# A pipeline: models called one after the other, or side by side, under one name.
#
#   remuda pipeline apply jobs/support.pipeline.hcl
#   curl … -d '{"model":"support","messages":[{"role":"user","content":"My invoice is wrong"}]}'
#
# Clients call it as they call a model. Each step's model scales by itself.

pipeline "support" {
  # How long a client waits at most for the end of the answer.
  deadline = "60s"

  step "classify" {
    model      = "demo"
    prompt     = "Billing or technical? Answer with one word: ${input.text}"
    max_tokens = 5
  }

  # Only one of these two is asked.
  step "billing" {
    when   = strcontains(lower(step.classify.text), "billing")
    model  = "demo"
    prompt = "Answer as the billing department: ${input.text}"
  }

  step "technical" {
    when     = !strcontains(lower(step.classify.text), "billing")
    model    = "demo"
    messages = input.messages
  }

  # One step's answer: its stream is passed through as it comes.
  output = coalesce(step.billing, step.technical)
}
