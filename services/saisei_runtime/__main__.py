from saisei_runtime.app import main

main()
