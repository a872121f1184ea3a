The job model-[[ var "model" . ]] applies the model. Next: remuda model status [[ var "model" . ]]
