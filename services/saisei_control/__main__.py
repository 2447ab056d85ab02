from saisei_control.app import main

main()
